"""Networks F(x, noise_level); NCSN++ (Song et al. 2021) in named sizes."""

from anisodiff.networks.config import SIZES, NCSNppConfig, ncsnpp_config
from anisodiff.networks.dropout import keyed_dropout, keyed_mask, layer_key
from anisodiff.networks.ncsnpp import NCSNpp
from anisodiff.networks.published import ScoreSdeInfo, VEScore, load_score_sde

__all__ = [
    "SIZES",
    "NCSNpp",
    "NCSNppConfig",
    "ScoreSdeInfo",
    "VEScore",
    "keyed_dropout",
    "keyed_mask",
    "layer_key",
    "load_score_sde",
    "ncsnpp_config",
]
