"""See what ran: when, on which stream, in how much memory, and what each step costs.

    tracing.py   trace(): what every thread did -> Trace: save for Perfetto, plot; Footprint: bytes in use over a run
    costs.py     profile_ops(): measures steps on one and on all threads, and stages, for schedules to be made of
    picture.py   footprint(): where each temporary lay and when -> FootprintPicture; page.py writes it as HTML
    tenants.py   what lay in the arena of a traced run, and when
    timeline.py  explain(): predicted beside measured, stream by stream
    inputs.py    random_inputs(): content for a model's inputs

    trace -> Recorder (runtime) -> slices -> steps of runs -> what is printed, plotted or saved

Nothing is recorded, and nothing costs anything, outside `trace`.
"""

from .costs import OpCost, OpProfile, profile_ops
from .inputs import random_inputs
from .picture import FootprintPicture, footprint
from .tenants import ArenaTenant
from .timeline import explain
from .tracing import Footprint, Trace, TracedStep, trace

__all__ = [
    "ArenaTenant",
    "Footprint",
    "FootprintPicture",
    "OpCost",
    "OpProfile",
    "Trace",
    "TracedStep",
    "explain",
    "footprint",
    "profile_ops",
    "random_inputs",
    "trace",
]
