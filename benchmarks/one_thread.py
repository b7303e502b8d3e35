"""Import this module first: it limits BLAS and torch to one thread.

The thread pools read these variables once, when their library is loaded.
"""

import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"
