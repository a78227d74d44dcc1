// Kernels that test_cubin.py knows all about, to see that cubin.py reads what is there and that
// cubin_check.py finds what is wrong.
#include <cstdint>

__device__ __forceinline__ float4 load(const float4* from) {
  float4 v;
  asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "l"(from));
  return v;
}

// Four loads of 128 bits are under way before the first is used.
extern "C" __global__ void __launch_bounds__(256)
    four_in_flight(float* out, const float4* in, int n) {
  float sum = 0.0F;
#pragma unroll 1
  for (int i = 0; i < n; i += 4) {
    float4 v[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) v[k] = load(in + i + k);
#pragma unroll
    for (int k = 0; k < 4; ++k) sum = fmaf(v[k].x, v[k].y, fmaf(v[k].z, v[k].w, sum));
  }
  out[threadIdx.x] = sum;
}

// The same loads, each at an address that the one before it gives.
extern "C" __global__ void one_in_flight(float* out, const float4* in, int n) {
  float sum = 0.0F;
  int at = 0;
#pragma unroll 1
  for (int i = 0; i < n; i += 4) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float4 v = load(in + at);
      sum = fmaf(v.x, v.y, fmaf(v.z, v.w, sum));
      at = __float_as_int(v.x);
    }
  }
  out[threadIdx.x] = sum;
}

// Loops of loads of 32 bits: the first adds only, the one inside the second multiplies.
extern "C" __global__ void narrow(float* out, const float* in, const int* counts, int n) {
  int total = 0;
#pragma unroll 1
  for (int i = 0; i < n; ++i) total += counts[i];
  float sum = 0.0F;
#pragma unroll 1
  for (int i = 0; i < total; ++i) {
    const float factor = in[i];
#pragma unroll 1
    for (int k = 0; k < n; ++k) sum = fmaf(factor, in[k], sum);
  }
  out[threadIdx.x] = sum;
}

// An array that is indexed at run time.
extern "C" __global__ void local_array(int* out, int i) {
  int values[64] = {};
  for (int k = 0; k < 1000; ++k) values[(k * i + out[k]) & 63] += k;
  for (int k = 0; k < 64; ++k) out[k] = values[k];
}

// 64 values that all live at a time, in 32 registers.
extern "C" __global__ void __launch_bounds__(1024, 2) spills(float* out, const float* in) {
  float values[64];
#pragma unroll
  for (int k = 0; k < 64; ++k) values[k] = in[k * 1024 + threadIdx.x];
  __syncthreads();
#pragma unroll
  for (int k = 0; k < 64; ++k) out[k * 1024 + threadIdx.x] = values[k] * values[63 - k];
}

// One access of each width; 5,008 bytes of shared memory.
extern "C" __global__ void widths(char* out, const char* in) {
  __shared__ char shared[5008];
  const auto i = threadIdx.x;
  shared[i] = in[i];
  __syncthreads();
  out[i] = shared[5007 - i];
  reinterpret_cast<short*>(out + 10000)[i] = reinterpret_cast<const short*>(in + 10000)[i];
  reinterpret_cast<int*>(out + 20000)[i] = reinterpret_cast<const int*>(in + 20000)[i];
  reinterpret_cast<int2*>(out + 30000)[i] = reinterpret_cast<const int2*>(in + 30000)[i];
  reinterpret_cast<int4*>(out + 40000)[i] = reinterpret_cast<const int4*>(in + 40000)[i];
}

// Copies of 4, 8 and 16 bytes, three ldmatrix, two products of bf16 and one of int8.
extern "C" __global__ void tensor(int* out, const char* in) {
  extern __shared__ char memory[];
  const auto to = static_cast<std::uint32_t>(__cvta_generic_to_shared(memory)) + threadIdx.x * 64;
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(in) : "memory");
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(to + 8), "l"(in) : "memory");
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + 16), "l"(in) : "memory");
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to + 32), "l"(in),
               "r"(out[1])
               : "memory");
  asm volatile("cp.async.wait_all;" ::: "memory");
  std::uint32_t a[3][4];
  for (int i = 0; i < 3; ++i) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a[i][0]), "=r"(a[i][1]), "=r"(a[i][2]), "=r"(a[i][3])
                 : "r"(to + i * 16)
                 : "memory");
  }
  float c[4] = {};
  int d[4] = {};
  for (int i = 0; i < 2; ++i) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[i][0]), "r"(a[i][1]), "r"(a[i][2]), "r"(a[i][3]), "r"(a[2][0]), "r"(a[2][1]));
  }
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0][0]), "r"(a[0][1]), "r"(a[0][2]), "r"(a[0][3]), "r"(a[2][2]), "r"(a[2][3]));
  for (int i = 0; i < 4; ++i) out[threadIdx.x * 4 + i] = d[i] + static_cast<int>(c[i]);
}

// A loop whose body is reached by a table of branches.
extern "C" __global__ void table(int* out, const int* kinds, int n) {
#pragma unroll 1
  for (int i = 0; i < n; ++i) {
    switch (kinds[i]) {
      case 0:
        out[i] = out[i + 1] * 3;
        break;
      case 1:
        out[i + 2] = __popc(out[i]);
        break;
      case 2:
        out[i + 9] = out[i] / 7;
        break;
      case 3:
        out[i + 4] = __clz(out[i + 5]);
        break;
      case 4:
        out[i + 8] = __brev(out[i + 3]);
        break;
      case 5:
        out[i] = out[i + 7] / 11;
        break;
      case 6:
        out[i + 6] = out[i] % 13;
        break;
      case 7:
        out[i + 3] = __ffs(out[i + 6]);
        break;
    }
  }
}
