"""What compiled forms of models are made of, on each kind of device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphpool._dataclasses import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

    from .form_constants import FormConstants
    from .form_plan import TensorPlaces
    from .model_form import ModelForm
    from .model_step import ModelStep
    from .runner import Runner

__all__ = ["FormParts"]


def _as_they_are(form: ModelForm, steps: list[ModelStep]) -> list[ModelStep]:
    return steps


@dataclass(frozen=True)
class FormParts:
    """Classes of the parts of an `Executable`.

    Attributes
    ----------
    constants : type of FormConstants
    places : type of TensorPlaces
    runner : type of Runner
    with_copies : callable
        Takes a form and its steps; the steps, with those that copy what runs are given and give.
    vary : bool
        Whether programs serve other sizes without a compilation.
    """

    constants: type[FormConstants]
    places: type[TensorPlaces]
    runner: type[Runner]
    with_copies: Callable[[ModelForm, list[ModelStep]], list[ModelStep]] = _as_they_are
    vary: bool = True
