"""Plan services on many machines: how many replicas of which model go where, and how they will answer.

times.py      ServiceTimes: seconds of a run by its rows, measured or given
simulator.py  simulate(): requests through replicas of `graphpool serve` -> Answers: latencies, refusals
packing.py    plan(): replicas onto machines by memory and processors, an integer program -> FleetPlan
demand.py     predict_demand(): what a model asks for, from its predicted memory and measured times
checks.py     what arguments may be

model -> predict_demand -> Demand -> plan -> FleetPlan; Demand.service, arrivals -> simulate -> Answers

A replica is one process of ``graphpool serve MODEL``. Nothing here starts one.
"""

from .demand import predict_demand
from .packing import Demand, FleetPlan, Machine, parse_machines, plan
from .simulator import Answers, Service, poisson_arrivals, simulate
from .times import ServiceTimes, measure_times

__all__ = [
    "Answers",
    "Demand",
    "FleetPlan",
    "Machine",
    "Service",
    "ServiceTimes",
    "measure_times",
    "parse_machines",
    "plan",
    "poisson_arrivals",
    "predict_demand",
    "simulate",
]
