"""Images from anywhere → one memory-mapped uint8 array → float32 batches.

source = open_source("photos")                      # or named_source("cifar10", "cifar-10-python.tar.gz")
dataset = prepare(source, "photos-64", size=64).dataset
images, index = Loader(dataset, batch=128, seed=0, device="cuda").batch(0)
"""

from anisodiff.data.arrays import Arrays, array_file
from anisodiff.data.cifar10 import Cifar10
from anisodiff.data.dataset import Dataset, is_dataset, open_dataset, verify_images
from anisodiff.data.external import HuggingFace, Lsun
from anisodiff.data.guessing import Guess, guess
from anisodiff.data.idx import FashionMnist
from anisodiff.data.loader import Draw, Loader, draw, permute
from anisodiff.data.memory import InMemory, in_memory
from anisodiff.data.named import NAMED, celeba, imagenet, named_source, open_source
from anisodiff.data.preparing import Prepared, prepare
from anisodiff.data.source import Pictures, Source, class_folders, pictures, read_images
from anisodiff.io.images import DecodeError, Fit
from anisodiff.io.picture_files import Item

__all__ = [
    "NAMED", "Arrays", "Cifar10", "Dataset", "DecodeError", "Draw", "FashionMnist", "Fit", "Guess", "HuggingFace",
    "InMemory", "Item", "Loader", "Lsun", "Pictures", "Prepared", "Source", "array_file", "celeba", "class_folders",
    "draw", "guess", "imagenet", "in_memory", "is_dataset", "named_source", "open_dataset", "open_source", "permute",
    "pictures", "prepare", "read_images", "verify_images",
]  # fmt: skip
