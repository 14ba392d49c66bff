"""A model to give away: a checkpoint without its training state, with a model card and a sheet of samples.

FOLDER/  model.safetensors  prior.safetensors   as in the checkpoint, byte by byte
         config.json                            without the folders of this machine
         manifest.json                          sha256 of these
         README.md, samples.png                 the card, and its samples
"""

import os
import secrets
import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from anisodiff.extras import need
from anisodiff.generation.images import Images
from anisodiff.generation.loaded_model import LoadedModel
from anisodiff.io import hub, tensor_files
from anisodiff.io.atomic import without_folders
from anisodiff.io.checkpoint import MANIFEST, Checkpoint, read
from anisodiff.io.picture_files import legible
from anisodiff.networks import own as own_networks
from anisodiff.registry import NETWORKS
from anisodiff.training.config import TrainConfig
from anisodiff.training.model import Plan
from anisodiff.version import __version__

CARD, SHEET = "README.md", "samples.png"
_TENSORS = ("model.safetensors", "prior.safetensors")
_NAMED = 20
"""Classes that a card names."""


class Shareable(LoadedModel, ABC):
    """A model that can be given away."""

    saved: Checkpoint | None = None
    """The checkpoint that it was loaded from."""

    @abstractmethod
    def sample(self, n: int) -> Images: ...

    def save_pretrained(self, folder: str | Path, *, numbers: str = "", samples: int = 16) -> Path:
        """Write the model to a new folder: weights as they are, a model card, and a sheet of ``samples`` (0: none).

        ``numbers``: what the card says of its quality, in Markdown: ``report.table()`` of `anisodiff.evaluate`.
        """
        target = Path(folder)
        if self.saved is None:
            raise ValueError("this model has no checkpoint: save one that was loaded with anisodiff.load")
        if os.path.lexists(target) and (not target.is_dir() or any(target.iterdir())):
            raise ValueError(f"{target} is not empty: choose a new folder")
        saved = read(self.saved.path)  # it may be gone, or changed since
        partial = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
        partial.mkdir(parents=True)
        try:
            self._fill(partial, saved, target.name, numbers=numbers, samples=samples)
            if target.exists():
                target.rmdir()
            partial.rename(target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        return target

    def _fill(self, folder: Path, saved: Checkpoint, name: str, *, numbers: str, samples: int) -> None:
        codes = {file: code for file, code in saved.codes.items() if file in _TENSORS}
        for file in codes:
            shutil.copyfile(saved.path / file, folder / file)
        source = without_folders(saved.meta["data"].get("source") or "")
        meta = {**saved.meta, "data": {**saved.meta["data"], "source": source}}
        if latent := saved.meta["config"].get("latent"):
            named = {**latent, "autoencoder": _place(latent["autoencoder"])}
            meta["config"] = {**saved.meta["config"], "latent": named}
        codes["config.json"] = tensor_files.put_json(folder / "config.json", meta)
        tensor_files.put_json(folder / "manifest.json", MANIFEST.new({"files": codes}))
        reverse, sheet = self.reverse_process(), ""
        if samples:
            self.sample(samples).save_grid(folder / SHEET)
            sheet = f"{samples} samples: seeds 0 to {samples - 1}, `{reverse.sampler}`, {reverse.nfe} NFE each."
        text = card(
            self.plan, meta, name, parameters=self.parameters, sampler=str(reverse.sampler),
            numbers=without_folders(numbers), sheet=sheet,
        )  # fmt: skip
        (folder / CARD).write_text(legible(text), encoding="utf-8")

    def push_to_hub(
        self, name: str, *, numbers: str = "", samples: int = 16, private: bool | None = None,
        token: str | None = None,
    ) -> str:  # fmt: skip
        """Write the folder of `save_pretrained` to OWNER/NAME on the Hugging Face Hub; returns its address.

        ``token``: that of huggingface_hub's login, where none is given.
        """
        repository, _ = hub.split(name)
        need("huggingface_hub", "push_to_hub", "hub")
        with TemporaryDirectory() as above:
            folder = self.save_pretrained(
                Path(above) / repository.rpartition("/")[2], numbers=numbers, samples=samples
            )
            message = f"anisodiff model after {self.meta['images']} images"
            return hub.push(folder, name, private=private, token=token, message=message)


def card(
    plan: Plan, meta: Mapping[str, Any], name: str, *, parameters: int, sampler: str, numbers: str = "",
    sheet: str = "",
) -> str:  # fmt: skip
    """The model card: what the model is, what it was trained on and how, its numbers and samples."""
    config, data = plan.config, meta["data"]
    head = {
        "library_name": "anisodiff",
        "pipeline_tag": "unconditional-image-generation",
        "tags": ["anisodiff", "diffusion", f"process:{config.process['preset']}"],
    }
    network = {key: value for key, value in config.network.items() if key != "name"}
    seconds = meta.get("training_seconds")
    rows = {
        "Process": f"`{config.process['preset']}`" + _listed(config.process, "preset"),
        "Network": f"`{config.network['name']}`, {parameters:,} parameters" + _listed(network),
        "Images": f"{config.channels}×{config.size[0]}×{config.size[1]} (channels, height, width)",
        "Latents": _latents(config),
        "Data": f"{data.get('images') or 'unknown number of'} images from "
        f"{_plain(data.get('source') or 'an unnamed set')}, fingerprint `{str(data['fingerprint'])[:16]}`",
        "Classes": _classes(config.classes, config.label_dropout),
        "Training": f"{meta['images']:,} images seen in {meta['step']:,} steps of {config.batch}, "
        f"Adam {config.lr:g}, EMA `{config.ema[0]}`, {config.precision}, seed {config.seed}"
        + ("" if seconds is None else f", {seconds:.0f} s"),
        "Learned": f"`{meta.get('model', 'model')}`: parameterization `{config.parameterization}`, "
        f"learns `{config.learns}`, t_min {config.t_min:g}",
        "Default sampler": f"`{sampler}`",
        "Made with": f"anisodiff {meta.get('version', __version__)}",
    }
    table = "\n".join(f"| {key} | {_plain(value)} |" for key, value in rows.items() if value)
    parts = [
        f"---\n{yaml.safe_dump(head, sort_keys=False, allow_unicode=True)}---\n\n# {_plain(name)}",
        f"| | |\n|---|---|\n{table}",
        f"## Use\n\n{_use(config, _plain(name))}",
        "## Numbers\n\n" + (numbers or "None were given."),
    ]
    if sheet:
        parts.append(f"## Samples\n\n![samples]({SHEET})\n\n{sheet}")
    return "\n\n".join(parts) + "\n"


def _classes(names: Sequence[str], dropout: float) -> str:
    """What was learned of classes; empty where nothing was."""
    if not names:
        return ""
    listed = ", ".join(names[:_NAMED]) + (f", … ({len(names)} in all)" if len(names) > _NAMED else "")
    return f"{listed}; label dropout {dropout:g}" + ("" if dropout else ": it cannot be guided")


def _place(autoencoder: str) -> str:
    """The name of an autoencoder without the folders of this machine; OWNER/NAME as it is."""
    return autoencoder if hub.is_repository(autoencoder.removeprefix(hub.PREFIX)) else Path(autoencoder).name


def _latents(config: TrainConfig) -> str:
    if not config.latent:
        return ""
    shape, code = "×".join(map(str, config.state_shape)), str(config.latent.get("sha256"))[:16]
    return f"{shape} of the autoencoder `{_place(config.latent['autoencoder'])}`, sha256 `{code}`"


def _use(config: TrainConfig, name: str) -> str:
    """How to load it; a network of someone's own, and an autoencoder, are not in the folder."""
    network, classes = str(config.network["name"]), config.classes
    own = own_networks.is_path(network) and network not in NETWORKS
    latent = f", latent={_place(config.latent['autoencoder'])!r}" if config.latent else ""
    code = f"anisodiff.load({name!r}{', trust_code=True' if own else ''}{latent})"
    note = f"The code of the network, `{network}`, is not part of this folder.\n\n" if own else ""
    note += "The autoencoder is not part of this folder: `latent` is its place.\n\n" if latent else ""
    return (
        f"{note}```python\nimport anisodiff\n\nmodel = {code}  # this folder, or 'hub:OWNER/NAME'\n"
        f"images = model.sample(16, seed=0{', classes=' + repr(classes[0]) if classes else ''})\n```"
    )


def _listed(keys: Mapping[str, Any], *but: str) -> str:
    """Keys that were set, in words."""
    parts = [f"{key} = {value}" for key, value in keys.items() if key not in but]
    return f" with {', '.join(parts)}" if parts else ""


def _plain(value: object) -> str:
    """Text from a file, for one cell of a table: no new line, no column, no HTML."""
    return " ".join(str(value).split()).replace("|", "\\|").replace("<", "&lt;")[:2000]
