"""Figures: what their lines and texts say."""

import torch

import anisodiff
from anisodiff.diagnosis import diagnose, snr_threshold
from anisodiff.io.figures import diagnosis_figure


def test_every_line_of_a_diagnosis_is_in_its_legend() -> None:
    images = torch.rand(40, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    (axes,) = diagnosis_figure(diagnose(anisodiff.process("heat", 8), images, replicates=20), "heat").axes
    (line,) = axes.lines
    assert list(line.get_ydata()) == [snr_threshold(40)] * 2
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [line.get_label()]
    assert line.get_label() == "0.47: above it U_T depends on U_0"
