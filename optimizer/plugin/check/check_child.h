#ifndef EPS_OPTIMIZER_PLUGIN_CHECK_CHECK_CHILD_H_
#define EPS_OPTIMIZER_PLUGIN_CHECK_CHECK_CHILD_H_

#include <string>
#include <vector>

namespace eps {

// The child process of CheckPlugin and DescribePlugin (plugin_check.h). Loads the object, fences
// this process (base/process/fence.h), runs the checks, and writes what it finds to descriptor 3
// (report_lines.h). `arguments` are those that the parent adds to PluginCheckOptions::child. Call
// it before the process has started any thread. Ends the process.
[[noreturn]] void RunPluginCheckChild(const std::vector<std::string>& arguments);

}  // namespace eps

#endif  // EPS_OPTIMIZER_PLUGIN_CHECK_CHECK_CHILD_H_
