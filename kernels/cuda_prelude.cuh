// What every kernel in this folder is compiled with on an NVIDIA GPU. The OpenCL device puts
// opencl_prelude.h in its place, and nothing else differs.
//
// Compile-time settings, chosen per device in flashnorm_lab/kernels.py:
//   LANES   threads that share one dot product or one sum (32 is one warp; on a CPU core it is 1)
//   ROWS    output elements that one block computes at once
//   UNROLL  partial sums that each thread keeps in registers, to hide the latency of an addition
//   STORAGE_FLOAT32, STORAGE_FLOAT16 or STORAGE_BFLOAT16: how x, g, W, h and the z of post_scale and
//           fused_norm_projection lie in memory. projection always writes float32, and r is float32 too.
// Arithmetic is float32 whatever the storage: a sum over n squares in float16 would overflow at 65504.

#define SHARED

#if defined(STORAGE_FLOAT16)
typedef unsigned short STORAGE;
__device__ inline float load(STORAGE bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}
__device__ inline STORAGE store(float value) {
    STORAGE bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}
#elif defined(STORAGE_BFLOAT16)
typedef unsigned short STORAGE;
__device__ inline float load(STORAGE bits) { return __uint_as_float((unsigned int)bits << 16); }
__device__ inline STORAGE store(float value) {
    unsigned int bits = __float_as_uint(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (STORAGE)0x7fff;  // a NaN stays a NaN
    bits += 0x7fffu + ((bits >> 16) & 1u);                             // round to nearest, ties to even
    return (STORAGE)(bits >> 16);
}
#else
typedef float STORAGE;
__device__ inline float load(STORAGE value) { return value; }
__device__ inline STORAGE store(float value) { return value; }
#endif
