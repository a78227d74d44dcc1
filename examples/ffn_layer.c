/* One sparse feed-forward layer from C: built from weights as a checkpoint has them, saved, opened
 * again as another process would, and run.
 *
 *   cc ffn_layer.c $(pkg-config --cflags --libs twell) -lm
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <twell/c.h>

enum { TOKENS = 64, WIDTH = 256, NEURONS = 1024 }; /* M, D, H */

/* [rows, cols] of numbers around `mean`. */
static float* random_matrix(int rows, int cols, float mean) {
  float* out = malloc(sizeof(float) * (size_t)rows * (size_t)cols);
  if (out == NULL) abort();
  for (int i = 0; i < rows * cols; ++i) {
    out[i] = mean + ((float)rand() / (float)RAND_MAX - 0.5F) * 0.1F;
  }
  return out;
}

/* The largest difference of y from the definition, of the largest |y|. */
static double largest_error(const float* x, const float* gate, const float* up, const float* down,
                            const float* y) {
  double worst = 0, largest = 0;
  for (int m = 0; m < TOKENS; ++m) {
    double sum[WIDTH] = {0};
    for (int n = 0; n < NEURONS; ++n) {
      double g = 0, u = 0;
      for (int i = 0; i < WIDTH; ++i) {
        g += (double)x[m * WIDTH + i] * gate[n * WIDTH + i];
        u += (double)x[m * WIDTH + i] * up[n * WIDTH + i];
      }
      for (int i = 0; g > 0 && i < WIDTH; ++i) sum[i] += g * u * down[i * NEURONS + n];
    }
    for (int i = 0; i < WIDTH; ++i) {
      const double error = fabs(sum[i] - y[m * WIDTH + i]);
      if (error > worst) worst = error;
      if (fabs(sum[i]) > largest) largest = fabs(sum[i]);
    }
  }
  return worst / largest;
}

static int fail(const char* what) {
  fprintf(stderr, "%s: %s\n", what, twell_last_error());
  return 1;
}

int main(void) {
  float* const x = random_matrix(TOKENS, WIDTH, 0.02F);
  float* const gate = random_matrix(NEURONS, WIDTH, -0.004F); /* most neurons stay silent */
  float* const up = random_matrix(NEURONS, WIDTH, 0);
  float* const down = random_matrix(WIDTH, NEURONS, 0); /* as checkpoints have it */
  float* const y = random_matrix(TOKENS, WIDTH, 0);
  const char* const path = "ffn_layer.twell";

  /* [layer] */
  twell_context* context = twell_context_new(0, NULL);
  twell_layer_description description = TWELL_LAYER_INIT;
  description.type = TWELL_F32;
  description.gate = (twell_weight){gate, TWELL_F32, NEURONS, WIDTH, 0, NULL};
  description.up = (twell_weight){up, TWELL_F32, NEURONS, WIDTH, 0, NULL};
  description.down = (twell_weight){down, TWELL_F32, WIDTH, NEURONS, 0, NULL};
  twell_layer* layer = twell_layer_new(context, &description, x, TOKENS);
  if (layer == NULL || twell_layer_save(layer, path) != 0) return fail("build");
  twell_layer_free(layer);

  layer = twell_layer_open(context, path, 0); /* mapped; any number of processes share it */
  int64_t fired = 0;
  if (layer == NULL || twell_layer_run(layer, context, TOKENS, x, 0, y, 0, &fired) != 0) {
    return fail("run");
  }
  /* [layer] */
  char plan[512];
  twell_layer_plan(layer, context, TOKENS, plan, sizeof plan);
  const double error = largest_error(x, gate, up, down, y);
  printf("twell %s: %s\n%.2f %% of the gate fired; largest error %.2g\n", twell_version(), plan,
         100.0 * (double)fired / (TOKENS * NEURONS), error);

  twell_layer_free(layer);
  twell_context_free(context);
  free(x);
  free(gate);
  free(up);
  free(down);
  free(y);
  remove(path);
  return error < 1e-5 ? 0 : 1;
}
