#ifndef EPS_COMPRESSION_PLUGIN_CHECK_CHECK_CHILD_H_
#define EPS_COMPRESSION_PLUGIN_CHECK_CHECK_CHILD_H_

#include <string>
#include <vector>

namespace eps {

// The child process of CheckCodec and DescribeCodec (codec_check.h): RunCheckChild
// (base/plugin/check/check_child.h) for a codec. `arguments` are those that the parent adds to
// PluginCheckOptions::child. Call it before the process has started any thread. Ends the process.
[[noreturn]] void RunCodecCheckChild(const std::vector<std::string>& arguments);

}  // namespace eps

#endif  // EPS_COMPRESSION_PLUGIN_CHECK_CHECK_CHILD_H_
