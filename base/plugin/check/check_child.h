#ifndef EPS_BASE_PLUGIN_CHECK_CHECK_CHILD_H_
#define EPS_BASE_PLUGIN_CHECK_CHECK_CHILD_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace eps {

// The part of a child that knows one kind of plug-in. The child calls its functions in their order;
// a child that only describes calls Load and Describe. It is never destroyed: threads cannot be
// joined in every state that a plug-in may leave.
class CheckSubject {
 public:
  CheckSubject() = default;
  virtual ~CheckSubject() = default;
  CheckSubject(const CheckSubject&) = delete;
  CheckSubject& operator=(const CheckSubject&) = delete;

  // Loads the object. Returns an error that begins with the path if it is no plug-in of this kind.
  virtual absl::Status Load(const std::string& path) = 0;
  // Creates the things that checks and the measurement need and a fenced process cannot create.
  // With 0 elements, nothing is measured.
  virtual absl::Status Prepare(uint64_t speed_elements) = 0;
  // Writes the lines of the description (report_lines.h), but not `described`.
  virtual void Describe() = 0;
  // Runs the check of this number. Returns its finding, or an empty text if the plug-in keeps the
  // contract. A plug-in that breaks it grossly ends the process instead.
  virtual std::string Check(size_t index) = 0;
  // Measures and writes the lines `speed` and `round`. Called only if all checks passed.
  virtual void Measure() = 0;
};

// The child process of RunCheckProcess (check_process.h). Loads the object, fences this process
// (base/process/fence.h), runs the checks of these names, and writes what it finds to
// kReportDescriptor. `arguments` are those that the parent adds to PluginCheckOptions::child. Call
// it before the process has started any thread. Ends the process.
[[noreturn]] void RunCheckChild(const std::vector<std::string>& checks, CheckSubject* subject,
                                const std::vector<std::string>& arguments);

}  // namespace eps

#endif  // EPS_BASE_PLUGIN_CHECK_CHECK_CHILD_H_
