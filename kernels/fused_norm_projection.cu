// Norm and projection in one launch: z = (x W*^T) / sqrt(mean(x^2) + eps), with the gain folded into W*.
//
// The main loop is that of projection.cu; the sum of squares rides along, since x is in a register
// anyway. The scale is applied in the epilogue, just before the one write. Nothing goes through memory
// between norm and product, and there is no second launch to wait for. Every row of W sums the same
// squares again, k times a token: cheap while the kernel waits for W from memory.
//
//   x [tokens, n]   W_folded [k, n]   z [tokens, k]

#include "sum_lanes.cuh"

extern "C" __global__
void fused_norm_projection(const STORAGE *x, const STORAGE *W_folded, STORAGE *z,
                           int tokens, int n, int k, float eps)
{
    __shared__ float scratch[LANES * ROWS];
    int lane = threadIdx.x % LANES;
    int row = blockIdx.x * ROWS + threadIdx.x / LANES;
    int whole = n - n % (LANES * UNROLL);

    for (int token = blockIdx.y; token < tokens; token += gridDim.y) {
        float sum = 0.0f;
        float squares = 0.0f;
        if (row < k) {
            size_t x0 = (size_t)token * n + lane;
            size_t w0 = (size_t)row * n + lane;
            float partial[UNROLL];
            float partial_squares[UNROLL];
            for (int u = 0; u < UNROLL; u++) partial[u] = partial_squares[u] = 0.0f;

            for (int i = 0; i < whole; i += LANES * UNROLL)
                for (int u = 0; u < UNROLL; u++) {
                    float value = load(x[x0 + i + u * LANES]);
                    partial[u] += value * load(W_folded[w0 + i + u * LANES]);
                    partial_squares[u] += value * value;
                }

            for (int i = whole; i + lane < n; i += LANES) {
                float value = load(x[x0 + i]);
                sum += value * load(W_folded[w0 + i]);
                squares += value * value;
            }
            for (int u = 0; u < UNROLL; u++) {
                sum += partial[u];
                squares += partial_squares[u];
            }
        }
        sum = sum_lanes(scratch, sum);
        squares = sum_lanes(scratch, squares);
        if (lane == 0 && row < k)
            z[(size_t)token * k + row] = store(sum / sqrtf(squares / n + eps));
    }
}
