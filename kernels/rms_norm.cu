// RMSNorm by itself: h = x / sqrt(mean(x^2) + eps) * g, the first launch of the sequential step.
//
// One block a token. It reads x twice: once for the sum of squares, once to scale. That is 4 arithmetic
// operations an element (square, add, times r, times g), for a launch whose fixed cost does not depend on
// n; notebook 02 measures it.
//
//   x [tokens, n]   g [n]   h [tokens, n]

#include "sum_lanes.cuh"

extern "C" __global__
void rms_norm(const STORAGE *x, const STORAGE *g, STORAGE *h, int tokens, int n, float eps)
{
    __shared__ float scratch[LANES];

    for (int token = blockIdx.x; token < tokens; token += gridDim.x) {
        size_t first = (size_t)token * n;

        float partial = 0.0f;
        for (int i = threadIdx.x; i < n; i += LANES) {
            float value = load(x[first + i]);
            partial += value * value;
        }
        float r = 1.0f / sqrtf(sum_lanes(scratch, partial) / n + eps);

        for (int i = threadIdx.x; i < n; i += LANES)
            h[first + i] = store(load(x[first + i]) * r * load(g[i]));
    }
}
