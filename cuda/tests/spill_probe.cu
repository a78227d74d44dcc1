// A kernel that must be refused: its array is indexed at run time and lives in local memory.
// Compiled by the test cuda_spills_are_errors, with the flags of the product's kernels.
__global__ void probe(int* out, int i) {
  int values[64] = {};
  for (int k = 0; k < 1000; ++k) values[(k * i + out[k]) & 63] += k;
  for (int k = 0; k < 64; ++k) out[k] = values[k];
}
