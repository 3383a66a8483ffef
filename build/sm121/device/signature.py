"""What a kernel takes: the parameters that PTX declares, and those that a cubin says it was built for.

Both sides of a compilation name each parameter's place in the constant bank, so they can be compared without running
either. PTX: https://docs.nvidia.com/cuda/parallel-thread-execution/#kernel-function-parameters. Cubin: the records
`EIATTR_KPARAM_INFO` (0x17) of `.nv.info.<kernel>`, measured on CUDA 12.8 to 13.5.
"""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING

from sm121.device.cubin import entry_functions
from sm121.device.elf import ElfFile
