"""Cost models: seconds, bytes and energy of each kernel on one GPU at any clock."""

from .coster import Coster
from .launch import Launch

__all__ = ["Coster", "Launch"]
