// The deferred division, moved behind the product (Proposition 2): z = y * r, one r a token.
//
// This is the kernel that reads what two other streams have written. It cannot tell whether y is
// this step's or the last one's: both are numbers of the right size. Only the edges join_matrix and
// join_vector make it this step's.
//
//   y [tokens, k] float32   r [tokens] float32   z [tokens, k]

extern "C" __global__
void post_scale(const float *y, const float *r, STORAGE *z, int tokens, int k)
{
    int column = blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= k) return;
    for (int token = blockIdx.y; token < tokens; token += gridDim.y) {
        size_t element = (size_t)token * k + column;
        z[element] = store(y[element] * r[token]);
    }
}
