"""GPUs as devices of engines, through cuda.bindings; imported when an engine of kind ``gpu`` is made.

gpu_device.py      GpuDevice: memory, copies and streams of one engine
gpu_queue.py       GpuQueue: a CUDA stream with memory for temporaries, which holds what its work uses
modules.py         kernels of cubins, loaded once for each device
cublas_lt.py       CublasLt: matrix products by cuBLASLt, where it is installed
launches.py        LaunchList: a program of launches
watch.py           Watch: words in which kernels tell of indices outside their axis
gpu_graph.py       GpuGraph: a program in one graph of the driver, on fixed addresses
gpu_form.py        what forms of models are made of: constants and places on the device, copies, host steps
gpu_partition.py   GpuPartition: what executes; HostPartition: ops that the host computes, with copies
"""
