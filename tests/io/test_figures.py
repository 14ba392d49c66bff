"""Figures: what their lines and texts say."""

import torch

import anisodiff
from anisodiff.diagnosis import diagnose, snr_threshold
from anisodiff.io.figures import diagnosis_figure, trajectory_figure


def test_every_line_of_a_diagnosis_is_in_its_legend() -> None:
    images = torch.rand(40, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    (axes,) = diagnosis_figure(diagnose(anisodiff.process("heat", 8), images, replicates=20), "heat").axes
    (line,) = axes.lines
    assert list(line.get_ydata()) == [snr_threshold(40)] * 2
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [line.get_label()]
    assert line.get_label() == "0.47: above it U_T depends on U_0"


def test_texts_have_four_digits_and_stay_on_the_page() -> None:
    keys = {"diffusivity": "geometric(0.123456789, 65.4321)", "step": "exponential(windows=10)"}
    process, u = anisodiff.process("anisotropic", 8, **keys), torch.rand(3, 8, 8)
    long = "anisotropic with diffusivity = geometric(0.123456789, 65.4321)"
    diagnosis = diagnose(process, torch.rand(4, 1, 8, 8), replicates=20)
    for figure in (trajectory_figure(process, long, [u], [1.0]), diagnosis_figure(diagnosis, long)):
        texts = [*figure.texts, *(axes.title for axes in figure.axes)]
        assert any("geometric(0.1235, 65.43)" in text.get_text().replace("\n", " ") for text in texts)
        for text in texts:
            box = text.get_window_extent()
            assert figure.bbox.x0 <= box.x0 <= box.x1 <= figure.bbox.x1
