"""Networks: x[B,C,H,W] and a noise condition c[B] → raw output; NCSN++ (Song et al. 2021) in named sizes."""

from anisodiff.networks.config import NCSNppConfig
from anisodiff.networks.dropout import keyed_dropout, keyed_mask
from anisodiff.networks.ncsnpp import NCSNpp
from anisodiff.networks.published import ScoreSdeInfo, VEScore, load_score_sde
from anisodiff.networks.sizes import SIZES, ncsnpp_config

__all__ = [
    "SIZES",
    "NCSNpp",
    "NCSNppConfig",
    "ScoreSdeInfo",
    "VEScore",
    "keyed_dropout",
    "keyed_mask",
    "load_score_sde",
    "ncsnpp_config",
]
