// Stands in for what a kernel reads, when somebody's program is played back to expose a hazard.
//
// Of that program only the bytes that each launch touches are known, not its arithmetic. So each range of
// bytes is one word of an arena, and what a launch found in its words is kept for it, to be compared between
// two interleavings. produce.cu is the other half.
//
//   arena [words] int   places [all launches] int, the words of each launch   seen [all launches] int

extern "C" __global__
void observe(const int *arena, const int *places, int *seen, int first_place, int first_seen, int count)
{
    if (blockIdx.x != 0 || threadIdx.x != 0) return;
    for (int i = 0; i < count; i++) seen[first_seen + i] = arena[places[first_place + i]];
}
