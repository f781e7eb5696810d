"""When steps run and which bytes they take: from steps to programs.

streams.py    steps as a graph to schedule: edges, units and costs
merging.py    which convolutions of one image one call computes
placement.py  which bytes the values take
link.py       steps to Programs: of the partition, and of what is made of its constants once
stages.py     some steps by themselves, to see what they take
"""
