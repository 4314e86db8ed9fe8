// The matrix product y = x W^T: one dot product of length n for every token and every row of W.
//
// LANES threads share a row of W, and neighbouring lanes read neighbouring elements, so that a GPU's
// warp loads W in whole cache lines. Each thread keeps UNROLL partial sums: on NVIDIA GPUs since Volta an
// addition takes about four cycles before its result can be used, and independent sums fill them. On a
// CPU core LANES is 1, and the same loop then reads UNROLL neighbours at once, which the compiler turns
// into vector loads.
//
//   x [tokens, n]   W [k, n], as a Hugging Face Linear stores it   y [tokens, k], always float32

#include "sum_lanes.cuh"

extern "C" __global__
void projection(const STORAGE *x, const STORAGE *W, float *y, int tokens, int n, int k)
{
    __shared__ float scratch[LANES * ROWS];
    int lane = threadIdx.x % LANES;
    int row = blockIdx.x * ROWS + threadIdx.x / LANES;
    int whole = n - n % (LANES * UNROLL);  // up to here no thread needs to ask whether it is past the end

    for (int token = blockIdx.y; token < tokens; token += gridDim.y) {
        float sum = 0.0f;
        if (row < k) {
            size_t x0 = (size_t)token * n + lane;
            size_t w0 = (size_t)row * n + lane;
            float partial[UNROLL];
            for (int u = 0; u < UNROLL; u++) partial[u] = 0.0f;

            for (int i = 0; i < whole; i += LANES * UNROLL)
                for (int u = 0; u < UNROLL; u++)
                    partial[u] += load(x[x0 + i + u * LANES]) * load(W[w0 + i + u * LANES]);

            for (int i = whole; i + lane < n; i += LANES)
                sum += load(x[x0 + i]) * load(W[w0 + i]);
            for (int u = 0; u < UNROLL; u++) sum += partial[u];
        }
        sum = sum_lanes(scratch, sum);
        if (lane == 0 && row < k) y[(size_t)token * k + row] = sum;
    }
}
