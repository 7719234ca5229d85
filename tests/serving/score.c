/* A client without Python: runs a SavedModel by TensorFlow's C API.

   score MODEL B T TENSOR... < ids

   The tensors are those that `saved_model_cli show` names, as NAME:INDEX:
   of `initial_memory` batch_size, memory, valid_length; of `serving_default`
   ids, memory, valid_length and log_probs, memory, valid_length.

   Reads segments of B x T ids until the end, and prints the log-probabilities
   of each, a number a line. The memory of one goes into the next. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensorflow/c/c_api.h"

static TF_Status* status;
static TF_Graph* graph;
static TF_Session* session;

static void check(void) {
  if (TF_GetCode(status) == TF_OK) return;
  fprintf(stderr, "%s\n", TF_Message(status));
  exit(1);
}

static TF_Output find(char* name) {
  char* colon = strrchr(name, ':');
  *colon = '\0';
  TF_Output output = {TF_GraphOperationByName(graph, name), atoi(colon + 1)};
  if (output.oper == NULL) {
    fprintf(stderr, "The model has no %s\n", name);
    exit(1);
  }
  return output;
}

static TF_Tensor* integers(const int* values, int num_dims, int64_t* dims) {
  size_t size = sizeof(int);
  for (int i = 0; i < num_dims; ++i) size *= dims[i];
  TF_Tensor* tensor = TF_AllocateTensor(TF_INT32, dims, num_dims, size);
  memcpy(TF_TensorData(tensor), values, size);
  return tensor;
}

static void run(const TF_Output* inputs, TF_Tensor** in, int num_inputs,
                const TF_Output* outputs, TF_Tensor** out, int num_outputs) {
  TF_SessionRun(session, NULL, inputs, in, num_inputs, outputs, out,
                num_outputs, NULL, 0, NULL, status);
  check();
  for (int i = 0; i < num_inputs; ++i) TF_DeleteTensor(in[i]);
}

int main(int argc, char** argv) {
  if (argc != 13) {
    fprintf(stderr, "usage: score MODEL B T TENSOR x 9 < ids\n");
    return 2;
  }
  status = TF_NewStatus();
  graph = TF_NewGraph();
  const char* tags[] = {"serve"};
  TF_SessionOptions* options = TF_NewSessionOptions();
  session = TF_LoadSessionFromSavedModel(options, NULL, argv[1], tags, 1,
                                         graph, NULL, status);
  check();
  int batch = atoi(argv[2]), length = atoi(argv[3]);
  TF_Output tensors[9];
  for (int i = 0; i < 9; ++i) tensors[i] = find(argv[4 + i]);

  TF_Tensor* in[3] = {integers(&batch, 0, NULL)};
  TF_Tensor* out[3];
  run(tensors, in, 1, tensors + 1, out + 1, 2);

  int* ids = malloc(sizeof(int) * batch * length);
  int64_t dims[] = {batch, length};
  for (int read = 0; scanf("%d", ids + read) == 1;) {
    if (++read < batch * length) continue;
    read = 0;
    in[0] = integers(ids, 2, dims);
    in[1] = out[1];
    in[2] = out[2];
    run(tensors + 3, in, 3, tensors + 6, out, 3);
    const float* log_probs = TF_TensorData(out[0]);
    for (int64_t i = 0; i < TF_TensorElementCount(out[0]); ++i) {
      printf("%.9g\n", log_probs[i]);
    }
    TF_DeleteTensor(out[0]);
  }
  free(ids);
  TF_CloseSession(session, status);
  check();
  return 0;
}
