// Keeps one thread busy for a given number of iterations, to widen a race window on purpose.
//
// Each iteration needs the result of the one before, so nothing can be skipped or overlapped, and the
// result is stored, so nothing can be optimised away.
//
//   sink [1] float32

extern "C" __global__
void spin(float *sink /* read and written */, int iterations)
{
    if (blockIdx.x != 0 || threadIdx.x != 0) return;
    float value = sink[0];
    for (int i = 0; i < iterations; i++) value = value * 0.999f + 0.001f;
    sink[0] = value;
}
