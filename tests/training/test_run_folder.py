"""config.yaml of a run: what is written is read back, paths included; damaged files are one line."""

from pathlib import Path

import pytest

from anisodiff.pretrained import shipped
from anisodiff.training.config import TrainConfig
from anisodiff.training.run_folder import NAME, RunDescription, read_run, write_run


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    config = TrainConfig(process={"preset": "heat", "T": 1.5}, size=(16, 24), network="tiny", betas=(0.8, 0.99))
    written = RunDescription(config=config, data=run / "data", heldout=run / "heldout", start=tmp_path / "other")
    write_run(run, written)
    assert read_run(run) == written
    assert read_run(run / NAME) == written


def test_a_run_can_be_moved_with_its_images(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    write_run(run, RunDescription(config=TrainConfig(), data=run / "data", start=tmp_path / "other"))
    moved = run.rename(tmp_path / "moved")
    assert read_run(moved).data == moved / "data"
    assert read_run(moved).start == tmp_path / "other"


def test_a_shipped_model_as_start_is_written_as_its_folder(tmp_path: Path) -> None:
    write_run(tmp_path, RunDescription(config=TrainConfig(), start=Path("cifar10-tiny")))
    assert read_run(tmp_path).start == shipped("cifar10-tiny")


def test_every_key_may_be_missing(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("lr: 1e-3\nprocess: ve\n")
    found = read_run(tmp_path / "mine.yaml")
    config = TrainConfig(lr=1e-3, process="ve")  # type: ignore[arg-type]
    assert found == RunDescription(config=config, given=("lr", "process"))
    assert found.changes == {"lr": 1e-3, "process": {"preset": "ve"}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("learning: 1", "learning"),
        ("data: 3", "data: got 3, expected a path"),
        ("- a", "mine.yaml"),
        ("lr: [", "mine.yaml"),
    ],
)
def test_a_malformed_file_is_one_line_that_names_it(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(ValueError, match=message) as caught:
        read_run(file)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_without_a_run(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no run"):
        read_run(tmp_path)
