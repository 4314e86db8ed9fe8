// What every kernel in this folder is compiled with on an OpenCL device, in place of cuda_prelude.cuh:
// CUDA's names for a thread's place, spelled in OpenCL. Storage is float32 here: the pinned PoCL (3.0) has
// no fp16.

#define threadIdx ((uint3)(get_local_id(0), get_local_id(1), get_local_id(2)))
#define blockIdx ((uint3)(get_group_id(0), get_group_id(1), get_group_id(2)))
#define blockDim ((uint3)(get_local_size(0), get_local_size(1), get_local_size(2)))
#define gridDim ((uint3)(get_num_groups(0), get_num_groups(1), get_num_groups(2)))
#define sqrtf sqrt

#define SHARED __local

typedef float STORAGE;
inline float load(STORAGE value) { return value; }
inline STORAGE store(float value) { return value; }
