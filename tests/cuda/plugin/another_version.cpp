// A library that says that it is a plugin, of an interface that is not this program's.
extern "C" const char* moe_cuda_interface() {
  return "an earlier one";
}
extern "C" const void* moe_cuda_device() {
  return nullptr;
}
