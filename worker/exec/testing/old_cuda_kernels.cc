// A library of kernels with another version of their interface, for a test of its refusal.

extern "C" int eps_cuda_abi_version() { return 2; }
