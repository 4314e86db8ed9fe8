// Stands in for what a kernel writes, when somebody's program is played back to expose a hazard.
//
// Each word that it writes depends on all that the launch has read (observe.cu) and on the launch's number.
// So every launch leaves its own mark, and a launch that has read something wrong writes something wrong.
//
//   seen [all launches] int   places [all launches] int: the words a launch reads, then those it writes
//   arena [words] int   number: of this launch   reads, writes: how many words
//
// play.py computes the same numbers, to tell from a word who wrote it. Arithmetic is modulo 2^32.

extern "C" __global__
void produce(const int *seen, const int *places, int *arena, int number, int first_place, int first_seen,
             int reads, int writes)
{
    if (blockIdx.x != 0 || threadIdx.x != 0) return;
    unsigned int state = (2166136261u ^ (unsigned int)number) * 16777619u;
    for (int i = 0; i < reads; i++) state = (state ^ (unsigned int)seen[first_seen + i]) * 16777619u;
    for (int i = 0; i < writes; i++) {
        int place = places[first_place + reads + i];
        unsigned int value = (state ^ (unsigned int)place) * 2654435769u;
        arena[place] = (int)(value ^ (value >> 15));
    }
}
