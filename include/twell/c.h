// libtwell for C and for languages that call C: a feed-forward layer that you build, save, open and
// run. It is twell::Layer (twell/layer.h), which decides by itself how each call runs. Its results
// are exact at any density.
//
// Functions return 0 or an object if they succeed. Otherwise they return -1 or NULL, and
// twell_last_error() says in one line what was wrong, where, and what was expected. An object is
// freed by the function of its name, which also takes NULL. Any number of threads may run one layer
// at the same time, each with its own context; a context serves one call at a time.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "twell/version.h"

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

// The version of the library, as "MAJOR.MINOR.PATCH".
const char* twell_version(void);

// The message of the calling thread's last failure; "" before the first.
const char* twell_last_error(void);

// The caller's own threads. run(self, tasks, task, data) calls task(data, 0) to task(data, tasks -
// 1), each once and all at the same time (they wait for each other), and returns when all have
// returned.
typedef struct twell_executor {
  void (*run)(void* self, int tasks, void (*task)(void* data, int index), void* data);
  void* self;
} twell_executor;

// What a call runs on: threads, a set of instructions, scratch memory.
typedef struct twell_context twell_context;

// threads: 0 takes one for each core that the process may use. executor: NULL takes OpenMP. The
// best tier that the processor has is taken, or the one that TWELL_CPU_TIER names.
twell_context* twell_context_new(int threads, const twell_executor* executor);
void twell_context_free(twell_context* context);

// Element types: x and y are TWELL_BF16 or TWELL_F32, weights one of these four. Codes times their
// scales are the weights: TWELL_INT8 has a scale for each row, TWELL_INT4 is in blocks
// (twell/int4.h) and also has a scale for each row.
typedef enum twell_type {
  TWELL_BF16 = 0,
  TWELL_F32 = 2,
  TWELL_INT8 = 3,
  TWELL_INT4 = 4
} twell_type;

// A weight as it is stored, row by row.
typedef struct twell_weight {
  const void* data;
  int32_t type;  // a twell_type
  int64_t rows, cols;
  int64_t stride;       // elements from row to row; 0: cols
  const float* scales;  // of codes: [rows], or [cols] of a neuron-major down; else NULL
} twell_weight;

typedef enum twell_activation {
  TWELL_RELU = 0,          // max(v, 0)
  TWELL_RELU_SQUARED = 1,  // max(v, 0)^2
  TWELL_FAT_RELU = 2,      // v > threshold ? v : 0
  TWELL_IDENTITY = 3       // v; only for up
} twell_activation;

// A layer: y = h Wd^T + bd, h = f(x Wg^T + bg) * fu(x Wu^T + bu); without a gate h = f(x Wg^T +
// bg), where Wg is the up projection. Start from TWELL_LAYER_INIT, which leaves out everything
// optional.
typedef struct twell_layer_description {
  size_t size;        // of this struct: a later library knows which fields there are
  twell_weight gate;  // Wg [H, D]
  twell_weight up;    // Wu [H, D]; without data: none
  twell_weight down;  // Wd [columns, H] as checkpoints have it, or [H, columns] if neuron_major
  int neuron_major;
  int32_t type;                                  // of x and y
  int32_t activation, up_activation;             // each a twell_activation
  float threshold;                               // of TWELL_FAT_RELU, at least 0
  const float *gate_bias, *up_bias, *down_bias;  // [H], [H], [columns]; NULL: none
  float norm_epsilon;                            // of an RMSNorm of h; 0: there is none
  const float* norm_weight;                      // [H]; NULL: ones
  int sparse_only;  // not 0: never runs densely, and never makes packed copies for that
} twell_layer_description;

#define TWELL_LAYER_INIT                                                                          \
  {                                                                                               \
    sizeof(twell_layer_description), {0, TWELL_BF16, 0, 0, 0, 0}, {0, TWELL_BF16, 0, 0, 0, 0},    \
        {0, TWELL_BF16, 0, 0, 0, 0}, 0, TWELL_BF16, TWELL_RELU, TWELL_IDENTITY, 0, 0, 0, 0, 0, 0, \
        0                                                                                         \
  }

typedef struct twell_layer twell_layer;

// The caller owns the weights and keeps them unchanged until the layer is freed; vectors are
// copied. `sample`, if not NULL, is [sample_rows, D] of representative inputs, best 32 or more,
// which choose the gate form. Without it the first call's inputs do.
twell_layer* twell_layer_new(twell_context* context, const twell_layer_description* description,
                             const void* sample, int64_t sample_rows);
// Opens a layer that twell_layer_save() wrote. The file is mapped: processes that open it share its
// memory. sparse_only: as in the description.
twell_layer* twell_layer_open(twell_context* context, const char* path, int sparse_only);
// Saves all of the layer, with its weights, once it was given a sample or ran. The file is replaced
// when everything is written, or left as it was.
int twell_layer_save(const twell_layer* layer, const char* path);
void twell_layer_free(twell_layer* layer);

// y = the layer of x: [rows, D] to [rows, columns]. Strides are elements from row to row; 0: the
// rows follow one another. `fired`, if not NULL, is set to the number of non-zeros of the activated
// gate [rows, H].
int twell_layer_run(twell_layer* layer, twell_context* context, int64_t rows, const void* x,
                    int64_t x_stride, void* y, int64_t y_stride, int64_t* fired);

// Sets D, H and columns, if not NULL.
void twell_layer_sizes(const twell_layer* layer, int64_t* width, int64_t* neurons,
                       int64_t* columns);

// How a call of so many rows would run, in words. Writes at most `size` bytes with the final zero,
// and returns the length of the whole text; -1 on an error.
int64_t twell_layer_plan(const twell_layer* layer, const twell_context* context, int64_t rows,
                         char* text, size_t size);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
