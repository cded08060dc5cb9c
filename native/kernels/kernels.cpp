// Compiled once per instruction set: the build defines ULTRAFAST_ISA (a namespace) and ULTRAFAST_VECTOR (its header).
#include "kernels.h"

#include ULTRAFAST_VECTOR

#include "attention.h"
#include "dequantise.h"
#include "elementwise.h"
#include "math.h"
#include "matmul.h"
#include "sampling.h"
#include "split.h"

#define ULTRAFAST_STRING_(x) #x
#define ULTRAFAST_STRING(x) ULTRAFAST_STRING_(x)

namespace ultrafast::ULTRAFAST_ISA {

const KernelTable kTable = {
    .name = ULTRAFAST_STRING(ULTRAFAST_ISA),
    .linear = linear,
    .linear_upper = linear_upper,
    .linear_group = linear_group,
    .rms_norm = rms_norm,
    .finite = finite,
    .quantise = quantise,
    .activate_multiply = activate_multiply,
    .soft_cap = soft_cap,
    .dequantise_row = dequantise_row,
    .rotate = rotate,
    .store_key_value = store_key_value,
    .attention = attention,
    .arg_max = arg_max,
    .next_reaching = next_reaching,
    .exp_sum = exp_sum,
    .log = scalar_log,
    .gumbel = gumbel,
    .noisy_bounds = noisy_bounds,
    .half_to_float = half_to_float_array,
};

}  // namespace ultrafast::ULTRAFAST_ISA
