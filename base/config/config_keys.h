#ifndef EPS_BASE_CONFIG_CONFIG_KEYS_H_
#define EPS_BASE_CONFIG_CONFIG_KEYS_H_

// The keys of the settings that do not define a job's bits, written as in base/job/keys.h, and the
// walk over all keys of a configuration. These files, security_keys.h and storage_keys.h, define
// all keys.

#include "absl/strings/str_cat.h"
#include "base/config/config.h"
#include "base/config/security_keys.h"
#include "base/config/storage_keys.h"
#include "base/config/text_rules.h"
#include "base/job/key_rules.h"
#include "base/job/keys.h"
#include "base/job/schedule.h"

namespace eps {

template <class V>
void LoraKeys(V* v, LoraConfig* l) {
  v->Key("lora.r", &l->r, AnyValue(),
         "Rank of LoRA adapters (docs/guides/lora.md): only they are trained, and the model's "
         "weights are frozen. eps train exports the model with them; 0 disables them.");
  v->Key("lora.alpha", &l->alpha, AnyValue(),
         "The adapters' result is multiplied by lora.alpha / lora.r; 0 stands for 2 * lora.r.");
  v->Key("lora.dropout", &l->dropout, AnyValue(), "Dropout of what the adapters read.");
  v->Key("lora.targets", &l->targets, AnyValue(),
         "Names of the layers that get adapters, such as [q_proj, v_proj], or all-linear; if it is "
         "empty, peft chooses them by the kind of the model.");
}

template <class V>
void RunKeysOfData(V* v, DataConfig* d) {
  v->Key("data.path", &d->path, AnyValue(),
         "Text files, one .epsd file (eps data make), or one flat .bin file of uint16 tokens.");
  v->Key("data.eval_path", &d->eval_path, AnyValue(),
         "Held-out data for evaluations, in a format of data.path; empty if there is none.");
}

template <class V>
void RunKeysOfTraining(V* v, TrainingConfig* t) {
  v->Key("training.epochs", &t->epochs, AnyValue(),
         "Passes over the data, in place of training.steps: as many steps as use every sample so "
         "often; 0 disables it.");
  v->Key("training.train_batch_size", &t->train_batch_size, AnyValue(),
         "Sequences in a step, checked against micro_batch_size * micro_batches * parts; 0 "
         "disables the check.");
  v->Key("training.eval_steps", &t->eval_steps, AnyValue(),
         "Steps between evaluations on data.eval_path; one more follows the last step. 0 disables "
         "evaluation.");
  v->Key("training.eval_samples", &t->eval_samples, AnyValue(),
         "Held-out samples of an evaluation; 0 means all complete samples.");
  v->Key(
      "training.early_stop_patience", &t->early_stop_patience, AnyValue(),
      "Ends the run after so many evaluations in a row whose eval.best_metric was no better than "
      "the best before; 0 disables this.");
}

template <class V>
void EvalKeys(V* v, EvalConfig* e) {
  v->Key("eval.metrics", &e->metrics, AnyValue(),
         "Figures of an evaluation beside its loss (docs/guides/evaluate.md): perplexity of a "
         "language model; accuracy, f1 and matthews of classes; pearson of numbers. An empty list "
         "means all that the model's task has.");
  v->Key("eval.best_metric", &e->best_metric, AnyValue(),
         "Figure that says which evaluation is the best; lower is better for loss and perplexity, "
         "higher for the others.");
}

template <class V>
void RunKeysOfSchedule(V* v, ScheduleConfig* s) {
  v->Key("lr_scheduler.warmup_ratio", &s->warmup_ratio, AnyValue(),
         "Warm-up as a share of the steps, in place of lr_scheduler.warmup_steps, rounded up to "
         "whole steps; 0 disables it.");
}

template <class V>
void RunKeysOfQuantization(V* v, QuantizationConfig* q) {
  v->Key("quantization.plugin", &q->plugin, AnyValue(),
         "File of a plug-in codec, for quantization.gradients=plugin and the keys of other "
         "gradients; also of eps serve and eps worker, on their machines "
         "(docs/guides/write_a_codec.md).");
  v->Key("quantization.rounding", &q->rounding, AnyValue(), "Rounding of mx9, mx6 and mx4.");
  v->Key("quantization.index", &q->index, AnyValue(),
         "How topk encodes the positions of the elements that it sends.");
  v->Key("quantization.values", &q->values, AnyValue(),
         "How topk encodes the elements that it sends: rounded to bf16, or bit for bit (fp32).");
  v->Key("quantization.selection", &q->selection, AnyValue(),
         "How topk chooses elements: exactly, or by a threshold from a sample (sampled).");
  v->Key("quantization.scope", &q->scope, AnyValue(),
         "Where topk chooses elements: within each chunk, or within a whole tensor.");
}

template <class V>
void CheckpointKeys(V* v, CheckpointConfig* c) {
  v->Key("checkpoint.dir", &c->dir, AnyValue(), "Output folder; if empty, nothing is written.");
  v->Key("checkpoint.resume", &c->resume, AnyValue(),
         "What to resume from: none, latest, or a checkpoint folder.");
  v->Key("checkpoint.save_steps", &c->save_steps, AnyValue(),
         "Steps between checkpoints; one more follows the last step. 0 saves only at the end.");
  v->Key("checkpoint.save_total_limit", &c->save_total_limit, AnyValue(),
         "Number of latest checkpoints to keep in checkpoint.dir; 0 keeps all.");
  v->Key("checkpoint.save_best", &c->save_best, AnyValue(),
         "Whether the file `best` in checkpoint.dir names the checkpoint with the best "
         "eval.best_metric, which checkpoint.save_total_limit then keeps; auto: if the run "
         "evaluates. Only checkpoints after an evaluated step count: make checkpoint.save_steps a "
         "multiple of training.eval_steps.");
  v->Key(
      "checkpoint.on_saved", &c->on_saved, AnyValue(),
      "Command for /bin/sh after each checkpoint, while the job trains on, with EPS_CHECKPOINT (a "
      "folder) and EPS_STEP. The next checkpoint waits for it; its failure ends nothing.");
  v->Key("checkpoint.on_saved_timeout", &c->on_saved_timeout_ms, DurationText(),
         "The most time of one call of checkpoint.on_saved; then it is stopped. 0 sets no limit.");
}

template <class V>
void ServersKeys(V* v, ServersConfig* s) {
  v->Key("servers.addresses", &s->addresses, AddressList(),
         "A number (2) starts that many servers; addresses (host:port,host:port) attach to running "
         "ones.");
  v->Key("servers.listen", &s->listen, AnyValue(),
         "Address that eps serve listens on; port 0 chooses a free one.");
  v->Key("servers.http", &s->http, AnyValue(),
         "Address of eps serve for probes and Prometheus (GET /healthz, /startupz, /readyz, "
         "/metrics), without TLS; port 0 chooses a free one; empty disables it.");
  v->Key("servers.trace", &s->trace, AnyValue(),
         "Folder to which servers append protocol events, one per line, for checks; empty disables "
         "the trace.");
  v->Key(
      "servers.threads", &s->threads, AnyValue(),
      "Threads of a server for reduction, update and encoding; 0 means all processors that it may "
      "use, or, if eps train starts it, its share of those that the workers leave (one is kept "
      "for each worker). The result does not depend on it.");
  v->Key("servers.memory_limit", &s->memory_limit, SizeText(),
         "Memory that a server may use; 0 means what is free on the machine, or in its container.");
  v->Key("servers.insecure", &s->insecure, AnyValue(),
         "Allows servers.listen on an address that is not loopback.");
  v->Key("servers.trust_plugins", &s->trust_plugins, AnyValue(),
         "Loads plug-ins into the server's own process, where they have its rights: an updater, "
         "for storage.kind=dram and nvme, and a codec, which servers need with any storage.");
  v->Key("servers.peers", &s->peers, AnyValue(),
         "Addresses (host:port) of the servers that eps serve may connect to, written as in "
         "servers.addresses; port 0 stands for every port. If it is empty, eps serve connects to "
         "loopback addresses only.");
  v->Key("servers.worker_timeout", &s->worker_timeout_ms, DurationText(),
         "A job whose state is not durable ends if a server is away for longer than this or, in "
         "mode eager, if a part that a worker left in the middle of a step has no other one for so "
         "long.");
  v->Key("servers.worker_lease", &s->worker_lease_ms, TimeoutText(),
         "A worker from which the servers hear nothing for so long loses its parts to another one; "
         "at least 1s.");
  v->Key("servers.worker_close_grace", &s->worker_close_grace_ms, DurationText(),
         "A worker whose connection closed loses its parts after this time; auto: 1s with "
         "training.mode=sealed, else servers.worker_lease.");
  v->Key("servers.worker_stuck_timeout", &s->worker_stuck_timeout_ms, DurationText(),
         "A worker that responds but computes no stage for so long loses its parts; 0 disables "
         "this.");
  v->Key("servers.push_timeout", &s->push_timeout_ms, TimeoutText(),
         "A gradient is complete so long after the server has given it memory, at least 1s; later, "
         "the memory goes to others, and the worker offers the gradient again.");
  v->Key("servers.gate_timeout", &s->gate_timeout_ms, TimeoutText(),
         "A program that holds the job at a border to save it (eps checkpoint save --servers) and "
         "is silent for so long, at least 1s, holds it no longer. The lead's value counts.");
  v->Key("servers.unread_timeout", &s->unread_timeout_ms, TimeoutText(),
         "A server disconnects a client that reads nothing of what it asked for during so long, at "
         "least 1s. An export that is not read holds updates back until then.");
  v->Key("servers.shm_weights", &s->shm_weights, SizeText(),
         "Memory for encoded weights that a server shares with the workers of its machine and user "
         "(worker.transport); what finds no room travels in messages. 0 shares none.");
  v->Key("servers.shm_gradients", &s->shm_gradients, SizeText(),
         "As servers.shm_weights, for the gradients of each of these workers.");
  v->Key("servers.shm_folder", &s->shm_folder, AnyValue(),
         "Folder of the Unix socket over which memory is shared, for this user alone (mode 0700); "
         "empty means $XDG_RUNTIME_DIR/eps or /tmp/eps-UID.");
  v->Key(
      "servers.drain_timeout", &s->drain_timeout_ms, DurationText(),
      "A server with durable state that gets SIGTERM ends when every server has a cut of a border "
      "at which the job then waits for it, but at the latest after this time; 0 ends it at "
      "once.");
  v->Key("servers.jit_depth", &s->jit_depth, AnyValue(),
         "Number of stages whose weights a server quantizes ahead of their first fetch: 1, or 2 "
         "against jitter; 0 disables this.");
}

template <class V>
void WorkerKeys(V* v, WorkerConfig* w) {
  v->Key("worker.device", &w->device, AnyValue(),
         "Device that computes: auto, cpu, cuda or cuda:N.");
  v->Key(
      "worker.stash", &w->stash, AnyValue(),
      "Where stage inputs wait for the backward pass: device; host; or auto, on the device as far "
      "as it has room, and else on the host.");
  v->Key(
      "worker.stash_host", &w->stash_host, SizeText(),
      "Host memory that the stage inputs of a worker may use; 0 means half of the memory that is "
      "free when the worker starts, shared by the workers of the machine.");
  v->Key(
      "worker.stash_path", &w->stash_path, AnyValue(),
      "A folder on a local disk for the stage inputs that find no room in memory. Nothing is left "
      "in it. Empty: they must fit into memory.");
  v->Key("worker.device_memory", &w->device_memory, SizeText(),
         "Memory of a device that a worker with worker.stash=auto may use; 0 means nine tenths of "
         "what is free when it starts.");
  v->Key("worker.keep", &w->keep, AnyValue(),
         "Whether the last stages keep what they computed until their backward pass, as far as "
         "the device has room beside the stash (auto), or all stages compute it again (none).");
  StashKey(v, &w->stash_codec);
  v->Key("worker.frozen_cache", &w->frozen_cache, SizeText(),
         "Host memory in which a worker keeps encoded weights that are not trained; 0 keeps none.");
  v->Key("worker.threads", &w->threads, AnyValue(),
         "Threads of a worker's computation; 0 means the worker's share of the processors.");
  v->Key("worker.prefetch", &w->prefetch, AnyValue(),
         "Stages to fetch ahead; 0 disables prefetching.");
  v->Key("worker.http", &w->http, AnyValue(),
         "As servers.http, for eps worker: GET /healthz, /readyz (it has joined a job), /metrics.");
  v->Key("worker.count", &w->count, AnyValue(), "Number of workers of the job.");
  v->Key("worker.rank", &w->rank, AnyValue(), "Number of this worker, from 0.");
  v->Key("worker.pass_time", &w->pass_time_ms, DurationText(),
         "For measurements with a model that reads no data: the least time of a forward pass of a "
         "micro-batch over a stage; a backward pass takes three times as long. 0 disables it.");
  v->Key("worker.transport", &w->transport, AnyValue(),
         "How weights and gradients travel: shm, in memory that the worker shares with servers of "
         "its machine and user; grpc, in messages; auto, shm where that works.");
  v->Key("worker.rpc_timeout", &w->rpc_timeout_ms, DurationText(),
         "How long a worker waits for one reply of a server.");
  v->Key("worker.join_timeout", &w->join_timeout_ms, DurationText(),
         "How long a worker waits until its servers answer and hold a job; 0 waits for ever.");
  v->Key("worker.stay", &w->stay, AnyValue(),
         "Waits for the servers' next job after one has ended, however long that takes.");
}

template <class V>
void MetricsKeys(V* v, MetricsConfig* m) {
  v->Key("metrics.log_every_steps", &m->log_every_steps, AnyValue(),
         "Steps between two progress lines.");
  v->Key("metrics.tensorboard", &m->tensorboard, AnyValue(),
         "Writes TensorBoard event files to <checkpoint.dir>/tensorboard.");
  v->Key("metrics.wandb", &m->wandb, AnyValue(),
         "Writes an offline run of Weights & Biases to <checkpoint.dir>/wandb when the run ends "
         "(eps wandb); needs the Python package wandb.");
  v->Key("metrics.hardware", &m->hardware, AnyValue(),
         "Description of the machines (`eps bench calibrate`, docs/reference/hardware.md): `eps "
         "train` then prints its plan, and compares the run with it at the end.");
}

// Visits all keys, section by section, in the order of `eps config print`.
template <class V>
void WalkConfig(V* v, Config* c) {
  v->Key("model.path", &c->model.path, AnyValue(),
         "Folder with config.json, or with the eps/program.json of an exported model; the path of "
         "either; or the name of a model in the cache of the Hugging Face hub, as ORG/NAME or "
         "ORG/NAME@REVISION; empty selects the quickstart model.");
  LoraKeys(v, &c->lora);
  DataKeys(v, &c->data);
  RunKeysOfData(v, &c->data);
  TrainingKeys(v, &c->training);
  ChunkKeys(v, &c->training.chunk_elements);
  RunKeysOfTraining(v, &c->training);
  EvalKeys(v, &c->eval);
  OptimizerKeys(v, &c->optimizer);
  v->Key("optimizer.weight_decay", &c->optimizer.weight_decay, AnyValue(),
         absl::StrCat("Weight decay of matrices. ", WeightDecayHelp(), "."));
  v->Key("optimizer.plugin", &c->optimizer.plugin, AnyValue(),
         "File of a plug-in updater, for optimizer.name=plugin; also of eps serve, on its machine "
         "(docs/guides/write_an_updater.md).");
  v->Key("optimizer.plugin_parameters", &c->optimizer.plugin_parameters, AnyValue(),
         "Parameters of the plug-in updater, such as \"alpha=0.9 eps=1e-6\".");
  v->Key(
      "optimizer.groups", &c->optimizer.groups, AnyValue(),
      "Tensors with other settings: a list of {match: REGEX, lr_multiplier: NUMBER, weight_decay: "
      "NUMBER, frozen: true}. The first rule whose expression is found in a tensor's name applies; "
      "vectors are never decayed, frozen tensors keep their values.");
  ScheduleKeys(v, &c->lr_scheduler);
  RunKeysOfSchedule(v, &c->lr_scheduler);
  CodecKeys(v, &c->quantization);
  RunKeysOfQuantization(v, &c->quantization);
  StorageKeys(v, &c->storage);
  CheckpointKeys(v, &c->checkpoint);
  ServersKeys(v, &c->servers);
  WorkerKeys(v, &c->worker);
  MetricsKeys(v, &c->metrics);
  SecurityKeys(v, &c->security);
}

}  // namespace eps

#endif  // EPS_BASE_CONFIG_CONFIG_KEYS_H_
