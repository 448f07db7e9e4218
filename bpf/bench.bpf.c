// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* For benchmarks: the edge as it is. */
#include "bench.h"
