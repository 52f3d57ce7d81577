// The interface between EPS and a plug-in updater: an update rule in a shared object that is
// built outside of this tree, in any language that can export a C function. This header is C99 and
// includes nothing of EPS; `eps updater new` copies it into the folder of a new updater.
// docs/guides/write_an_updater.md explains how to write, check and use one.
//
// The object exports one function:
//
//   const eps_updater *eps_updater_v1(void);
//
// It returns a description that lives as long as the object stays loaded. EPS calls it once, and
// then `update` from several threads at once, each for other elements.
#ifndef EPS_OPTIMIZER_PLUGIN_EPS_UPDATER_H_
#define EPS_OPTIMIZER_PLUGIN_EPS_UPDATER_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// The version of this interface. EPS refuses an object of another version.
#define EPS_UPDATER_ABI 1u

// Limits: EPS refuses a description that exceeds them. A name has 1 to 63 characters: small
// letters, digits and '_', beginning with a letter.
#define EPS_UPDATER_MAX_FIELDS 4u
#define EPS_UPDATER_MAX_PARAMETERS 16u

// The numbers of one update of one parameter group. They are equal on every server.
typedef struct eps_updater_step {
  uint64_t update;      // the number of this update; the first one has 1
  double lr;            // the learning rate of the group in this update
  double weight_decay;  // of the group
  float grad_scale;     // multiply every gradient by it, and round the product to float
} eps_updater_step;

// A number that the user may choose, in optimizer.plugin_parameters.
typedef struct eps_updater_parameter {
  const char* name;
  double usual;        // its value if the user chooses none
  double least, most;  // the values that EPS accepts, both included
} eps_updater_parameter;

// Updates `n` elements in place: weight[i] and, for each field f of the description in its order,
// fields[f][i], from grad[i]. `parameters` has the values of the parameters in the order of the
// description. All fields are 0 before the first update.
//
// The result for an element may depend on its own numbers, on the step and on the parameters, and
// on nothing else: EPS calls this function for pieces of any length, in any order, at any
// alignment of 4 bytes, and expects the same bits. Arrays do not overlap. The function must not
// allocate, lock, call the operating system or change the floating-point mode; the caller has set
// the mode that treats denormals as 0. Compile with -ffp-contract=off: a fused multiply-add gives
// other bits on other machines.
typedef void eps_updater_update(const eps_updater_step* step, const double* parameters, size_t n,
                                const float* grad, float* weight, float* const* fields);

// The description of an updater, which its object returns.
typedef struct eps_updater {
  uint32_t abi;  // EPS_UPDATER_ABI
  const char* name;
  uint32_t field_count;
  const char* const* fields;  // names of the state fields; 4 bytes of state per element each
  uint32_t parameter_count;
  const eps_updater_parameter* parameters;
  eps_updater_update* update;
  // The same rule written for readers, one element after the other. It must give the same bits as
  // `update`; `eps updater check` compares them, and `eps verify` trains with it.
  eps_updater_update* reference;
} eps_updater;

// The function that the object exports, and its type.
#define EPS_UPDATER_SYMBOL "eps_updater_v1"
typedef const eps_updater* eps_updater_entry(void);

#ifdef __cplusplus
}
#endif

#endif  // EPS_OPTIMIZER_PLUGIN_EPS_UPDATER_H_
