// Add up one float from each of the LANES threads of a row; every thread of the row gets the sum.
//
// The threads meet in shared memory. Each round halves the number that add: with LANES = 8, threads
// 0..3 add what 4..7 left, then 0..1 what 2..3 left, then 0 what 1 left. A thread may read its
// neighbour's number only after the neighbour has written it, hence a barrier in every round. All
// threads of the block must get here, also those whose row lies past the end: a barrier that some
// threads never reach is undefined behaviour.
//
// LANES must be a power of two, since each round halves it. With one lane there is nothing to add, and
// the compiler removes all of it.

#if LANES & (LANES - 1)
#error "LANES must be a power of two"
#endif

__device__ float sum_lanes(SHARED float *scratch, float mine)
{
#if LANES > 1
    int lane = threadIdx.x % LANES;
    scratch[threadIdx.x] = mine;
    __syncthreads();
    for (int step = LANES / 2; step > 0; step /= 2) {
        if (lane < step) scratch[threadIdx.x] += scratch[threadIdx.x + step];
        __syncthreads();
    }
    float sum = scratch[threadIdx.x - lane];
    __syncthreads();  // nobody may overwrite scratch for the next sum while others still read this one
    return sum;
#else
    return mine;
#endif
}
