// The one number a token that RMSNorm needs: r = 1 / sqrt(mean(x^2) + eps).
//
// The deferred step runs this on the vector stream while the matrix stream multiplies. It finishes long
// before the product, as a rule; only join_vector makes that certain.
//
//   x [tokens, n]   r [tokens], always float32

#include "sum_lanes.cuh"

extern "C" __global__
void inv_rms(const STORAGE *x, float *r, int tokens, int n, float eps)
{
    __shared__ float scratch[LANES];

    for (int token = blockIdx.x; token < tokens; token += gridDim.x) {
        float partial = 0.0f;
        for (int i = threadIdx.x; i < n; i += LANES) {
            float value = load(x[(size_t)token * n + i]);
            partial += value * value;
        }
        float mean = sum_lanes(scratch, partial) / n;
        if (threadIdx.x == 0) r[token] = 1.0f / sqrtf(mean + eps);
    }
}
