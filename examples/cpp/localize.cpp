// Image -> descriptor, kappa and the nearest place, with ONNX Runtime's C++ API. Place and query are raw files:
//   python -c "import numpy as np; np.load('town.npz')['descriptors'].astype('f4').tofile('town.f32')"
//   g++ -std=c++17 localize.cpp -lonnxruntime -o localize && ./localize place.onnx town.f32 query.rgb 320 320
// query.rgb: 8-bit RGB, height x width x 3, resized as the model asks for. Mean and std are those of the
// record (`kappaplace` in the file's metadata), printed here and parsed with whatever JSON reader you have.
#include <onnxruntime_cxx_api.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <numeric>
#include <vector>

template <class T> std::vector<T> read(const char* path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<char> bytes((std::istreambuf_iterator<char>(file)), {});
  auto first = reinterpret_cast<const T*>(bytes.data());
  return {first, first + bytes.size() / sizeof(T)};
}

int main(int argc, char** argv) {
  if (argc != 6) return std::fprintf(stderr, "localize MODEL PLACES QUERY HEIGHT WIDTH\n"), 2;
  const float mean[] = {0.5f, 0.5f, 0.5f}, std_[] = {0.5f, 0.5f, 0.5f};  // kappaplace-lite0; see the record
  const int64_t height = std::atoll(argv[4]), width = std::atoll(argv[5]), area = height * width;
  const auto pixels = read<uint8_t>(argv[3]);
  const auto places = read<float>(argv[2]);
  if (int64_t(pixels.size()) != 3 * area) return std::fprintf(stderr, "%s has another size\n", argv[3]), 2;
  std::vector<float> planes(3 * area);
  for (int64_t i = 0; i < area; ++i)
    for (int c = 0; c < 3; ++c) planes[c * area + i] = (pixels[3 * i + c] / 255.0f - mean[c]) / std_[c];

  Ort::Env env;
  Ort::Session session(env, argv[1], Ort::SessionOptions());
  Ort::AllocatorWithDefaultOptions allocator;
  if (auto record = session.GetModelMetadata().LookupCustomMetadataMapAllocated("kappaplace", allocator))
    std::printf("%.300s...\n", record.get());
  const int64_t shape[] = {1, 3, height, width};
  auto memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
  auto input = Ort::Value::CreateTensor<float>(memory, planes.data(), planes.size(), shape, 4);
  const char *in[] = {"images"}, *out[] = {"descriptor", "kappa"};
  auto made = session.Run(Ort::RunOptions{nullptr}, in, &input, 1, out, 2);

  const float* descriptor = made[0].GetTensorData<float>();
  const size_t dim = made[0].GetTensorTypeAndShapeInfo().GetElementCount();
  size_t best = 0;
  float highest = -2.0f;
  for (size_t row = 0; (row + 1) * dim <= places.size(); ++row) {
    const float cosine = std::inner_product(descriptor, descriptor + dim, &places[row * dim], 0.0f);
    if (cosine > highest) highest = cosine, best = row;
  }
  std::printf("kappa %.1f, best place %zu, cosine %.4f\n", made[1].GetTensorData<float>()[0], best, highest);
}
