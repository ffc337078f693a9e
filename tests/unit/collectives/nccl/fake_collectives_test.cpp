// The double computes what NCCL computes: all functions, types and operations.
#include "fake_ranks.hpp"

namespace ddp::collectives::nccl {
namespace {

/// Bits of a small whole number, exact in all types: a second way, beside the double's own.
std::uint64_t bits_of(ncclDataType_t type, int value) {
  const auto floating = [&](int exponent_bits, int mantissa_bits) -> std::uint64_t {
    if (value == 0) return 0;
    const int exponent = std::ilogb(value);
    const auto mantissa = (static_cast<std::uint64_t>(value) << mantissa_bits >> exponent) - (1ULL << mantissa_bits);
    const auto biased = static_cast<std::uint64_t>(exponent + (1 << (exponent_bits - 1)) - 1);
    return biased << mantissa_bits | mantissa;
  };
  switch (type) {
    case ncclFloat16: return floating(5, 10);
    case ncclBfloat16: return floating(8, 7);
    case ncclFloat32: return floating(8, 23);
    case ncclFloat64: return floating(11, 52);
    case ncclFloat8e4m3: return floating(4, 3);
    case ncclFloat8e5m2: return floating(5, 2);
    default: return static_cast<std::uint64_t>(value);
  }
}
std::size_t bytes_of(ncclDataType_t type) {
  constexpr std::array<std::size_t, 12> kBytes{1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return kBytes.at(type);
}

std::vector<unsigned char> encode(ncclDataType_t type, const std::vector<int>& values) {
  std::vector<unsigned char> bytes(values.size() * bytes_of(type));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint64_t bits = bits_of(type, values[i]);
    std::memcpy(bytes.data() + i * bytes_of(type), &bits, bytes_of(type));
  }
  return bytes;
}

/// What rank @p rank has at place @p i: 0, 1 or 2.
int value_of(int rank, std::size_t i) {
  if (i % 7 == 6) return 0;
  return (static_cast<std::size_t>(rank) + i) % 3 == 0 ? 2 : 1;
}

std::vector<int> values_of(int rank, std::size_t count) {
  std::vector<int> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = value_of(rank, i);
  return values;
}

int reduced(ncclRedOp_t op, int ranks, std::size_t i) {
  int result = value_of(0, i);
  for (int rank = 1; rank < ranks; ++rank) {
    const int value = value_of(rank, i);
    if (op == ncclSum || op == ncclAvg) result += value;
    if (op == ncclProd) result *= value;
    if (op == ncclMax) result = std::max(result, value);
    if (op == ncclMin) result = std::min(result, value);
  }
  return result;
}

/// Two bits of mantissa hold no more.
bool exact(ncclDataType_t type, int value) {
  const int bits = type == ncclFloat8e5m2 ? 3 : type == ncclFloat8e4m3 ? 4 : 7;
  while (value != 0 && value % 2 == 0) value /= 2;
  return value < 1 << bits;
}

std::vector<int> all_reduced(ncclRedOp_t op, int ranks, std::size_t count) {
  std::vector<int> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = reduced(op, ranks, i);
  return values;
}

class FakeCollectives : public FakeNcclTest, public ::testing::WithParamInterface<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, FakeCollectives, ::testing::Values(1, 2, 3, 8));

TEST_P(FakeCollectives, AllReduceOfAllTypesAndOperations) {
  with_ranks(GetParam(), Mode::blocking, [](Rank& rank) {
    constexpr std::size_t kCount = 37;
    for (unsigned type = ncclInt8; type <= ncclFloat8e5m2; ++type) {
      for (unsigned op = ncclSum; op <= ncclMin; ++op) {
        const auto data = static_cast<ncclDataType_t>(type);
        const auto expected = all_reduced(static_cast<ncclRedOp_t>(op), rank.size, kCount);
        const Buffer in(encode(data, values_of(rank.rank, kCount)));
        const Buffer out(kCount * bytes_of(data));
        ASSERT_EQ(fake()->all_reduce(in.get(), out.get(), kCount, data, static_cast<ncclRedOp_t>(op), rank.comm,
                                     rank.stream()),
                  ncclSuccess);
        rank.device.synchronize();
        const auto bytes = out.read<unsigned char>();
        const auto wanted = encode(data, expected);
        for (std::size_t i = 0; i < kCount; ++i) {
          if (!exact(data, expected[i])) continue;
          EXPECT_EQ(std::memcmp(bytes.data() + i * bytes_of(data), wanted.data() + i * bytes_of(data), bytes_of(data)),
                    0)
              << "type " << type << ", operation " << op << ", element " << i << " of " << expected[i];
        }
      }
    }
  });
}

TEST_P(FakeCollectives, AverageAndScaledSum) {
  with_ranks(GetParam(), Mode::blocking, [](Rank& rank) {
    const Buffer in(std::vector<float>(5, static_cast<float>(rank.rank + 1)));
    const Buffer whole(std::vector<std::int32_t>(5, rank.rank * 2));
    const Buffer out(5 * sizeof(float));
    const Buffer whole_out(5 * sizeof(float));
    const auto ranks = static_cast<float>(rank.size);
    ASSERT_EQ(fake()->all_reduce(in.get(), out.get(), 5, ncclFloat32, ncclAvg, rank.comm, rank.stream()), ncclSuccess);
    ASSERT_EQ(fake()->all_reduce(whole.get(), whole_out.get(), 5, ncclInt32, ncclAvg, rank.comm, rank.stream()),
              ncclSuccess);
    rank.device.synchronize();
    EXPECT_FLOAT_EQ(out.read<float>()[4], (ranks + 1) / 2);
    EXPECT_EQ(whole_out.read<std::int32_t>()[4], rank.size - 1);

    // A scalar of the host is read when the operation is made, one of the device when it runs.
    float scalar = 0.5F;
    const Buffer late(std::vector<float>{8});
    ncclRedOp_t host_op = ncclSum;
    ncclRedOp_t device_op = ncclSum;
    ASSERT_EQ(fake()->red_op_create_pre_mul_sum(&host_op, &scalar, ncclFloat32, ncclScalarHostImmediate, rank.comm),
              ncclSuccess);
    ASSERT_EQ(fake()->red_op_create_pre_mul_sum(&device_op, late.get(), ncclFloat32, ncclScalarDevice, rank.comm),
              ncclSuccess);
    scalar = 7;
    const float quarter = 0.25F;
    std::memcpy(late.get(), &quarter, sizeof quarter);
    const float sum = ranks * (ranks + 1) / 2;
    for (const auto& [op, factor] : {std::pair{host_op, 0.5F}, std::pair{device_op, 0.25F}}) {
      ASSERT_EQ(fake()->all_reduce(in.get(), out.get(), 5, ncclFloat32, op, rank.comm, rank.stream()), ncclSuccess);
      rank.device.synchronize();
      EXPECT_FLOAT_EQ(out.read<float>()[0], sum * factor);
      EXPECT_EQ(fake()->red_op_destroy(op, rank.comm), ncclSuccess);
      EXPECT_EQ(fake()->red_op_destroy(op, rank.comm), ncclInvalidArgument);
    }
    EXPECT_EQ(fake()->all_reduce(in.get(), out.get(), 5, ncclFloat32, host_op, rank.comm, rank.stream()),
              ncclInvalidArgument);
  });
}

/// Larger than a slot and a mailbox, and in place where NCCL allows it.
TEST_P(FakeCollectives, AllFunctions) {
  with_ranks(GetParam(), Mode::blocking, [](Rank& rank) {
    constexpr std::size_t kCount = 50'001;
    const auto n = static_cast<std::size_t>(rank.size);
    const auto me = static_cast<std::size_t>(rank.rank);
    const int root = rank.size - 1;
    const bool is_root = rank.rank == root;
    const NcclFunctions& nccl = fake().functions();
    ncclComm_t comm = rank.comm;
    CUstream stream = rank.stream();
    const auto check = [&](const Buffer& buffer, std::size_t at, const std::vector<int>& expected, const char* what) {
      rank.device.synchronize();
      const auto got = buffer.read<std::int32_t>();
      EXPECT_TRUE(std::equal(expected.begin(), expected.end(), got.begin() + static_cast<std::ptrdiff_t>(at))) << what;
    };
    const auto at_part = [](const Buffer& buffer, std::size_t part) {
      return static_cast<std::int32_t*>(buffer.get()) + part * kCount;
    };
    const std::vector<int> mine = values_of(rank.rank, kCount);

    const Buffer one(mine);
    EXPECT_EQ(nccl.all_reduce(one.get(), one.get(), kCount, ncclInt32, ncclSum, comm, stream), ncclSuccess);
    check(one, 0, all_reduced(ncclSum, rank.size, kCount), "all_reduce in place");

    const Buffer reduced_in(mine);
    const Buffer result(kCount * sizeof(std::int32_t));
    EXPECT_EQ(
        nccl.reduce(reduced_in.get(), is_root ? result.get() : nullptr, kCount, ncclInt32, ncclMax, root, comm, stream),
        ncclSuccess);
    if (is_root) check(result, 0, all_reduced(ncclMax, rank.size, kCount), "reduce");

    EXPECT_EQ(nccl.broadcast(is_root ? reduced_in.get() : nullptr, result.get(), kCount, ncclInt32, root, comm, stream),
              ncclSuccess);
    check(result, 0, values_of(root, kCount), "broadcast");

    const Buffer all(n * kCount * sizeof(std::int32_t));
    std::memcpy(at_part(all, me), mine.data(), mine.size() * sizeof(int));
    EXPECT_EQ(nccl.all_gather(at_part(all, me), all.get(), kCount, ncclInt32, comm, stream), ncclSuccess);
    for (std::size_t r = 0; r < n; ++r) check(all, r * kCount, values_of(static_cast<int>(r), kCount), "all_gather");

    EXPECT_EQ(
        nccl.all_to_all(all.get(), all.get() == nullptr ? nullptr : result.get(), kCount / n, ncclInt32, comm, stream),
        ncclSuccess);
    rank.device.synchronize();

    // Everybody has the same in `all`, so the sum of each place is n times it.
    EXPECT_EQ(nccl.reduce_scatter(all.get(), at_part(all, me), kCount, ncclInt32, ncclSum, comm, stream), ncclSuccess);
    std::vector<int> multiplied = mine;
    for (int& value : multiplied) value *= rank.size;
    check(all, me * kCount, multiplied, "reduce_scatter in place");

    const Buffer gathered(n * kCount * sizeof(std::int32_t));
    EXPECT_EQ(nccl.gather(reduced_in.get(), is_root ? gathered.get() : nullptr, kCount, ncclInt32, root, comm, stream),
              ncclSuccess);
    for (std::size_t r = 0; r < n && is_root; ++r) {
      check(gathered, r * kCount, values_of(static_cast<int>(r), kCount), "gather");
    }
    EXPECT_EQ(nccl.scatter(is_root ? gathered.get() : nullptr, result.get(), kCount, ncclInt32, root, comm, stream),
              ncclSuccess);
    check(result, 0, mine, "scatter");

    // A ring: all send before they receive, which only a group can.
    const int next = (rank.rank + 1) % rank.size;
    const int previous = (rank.rank + rank.size - 1) % rank.size;
    EXPECT_EQ(nccl.group_start(), ncclSuccess);
    EXPECT_EQ(nccl.send(reduced_in.get(), kCount, ncclInt32, next, comm, stream), ncclSuccess);
    EXPECT_EQ(nccl.send(reduced_in.get(), 0, ncclInt32, next, comm, stream), ncclSuccess);
    EXPECT_EQ(nccl.receive(result.get(), kCount, ncclInt32, previous, comm, stream), ncclSuccess);
    EXPECT_EQ(nccl.receive(all.get(), 0, ncclInt32, previous, comm, stream), ncclSuccess);
    EXPECT_EQ(nccl.group_end(), ncclSuccess);
    check(result, 0, values_of(previous, kCount), "send and receive");

    // A group is one launch on all its streams.
    CUstream second = nullptr;
    EXPECT_EQ(cuStreamCreateWithPriority(&second, CU_STREAM_NON_BLOCKING, 0), CUDA_SUCCESS);
    const Buffer a(mine);
    const Buffer b(mine);
    EXPECT_EQ(nccl.group_start(), ncclSuccess);
    EXPECT_EQ(nccl.all_reduce(a.get(), a.get(), kCount, ncclInt32, ncclMin, comm, stream), ncclSuccess);
    EXPECT_EQ(nccl.all_reduce(b.get(), b.get(), kCount, ncclInt32, ncclSum, comm, second), ncclSuccess);
    EXPECT_EQ(nccl.group_end(), ncclSuccess);
    EXPECT_EQ(cuStreamSynchronize(second), CUDA_SUCCESS);
    check(a, 0, all_reduced(ncclMin, rank.size, kCount), "first of a group");
    check(b, 0, all_reduced(ncclSum, rank.size, kCount), "second of a group");
    EXPECT_EQ(cuStreamDestroy(second), CUDA_SUCCESS);
  });
}

TEST_F(FakeNcclTest, AllToAll) {
  with_ranks(3, Mode::blocking, [](Rank& rank) {
    const int base = rank.rank * 10;
    const Buffer in(std::vector<std::int64_t>{base, base + 1, base + 2});
    const Buffer out(3 * sizeof(std::int64_t));
    ASSERT_EQ(fake()->all_to_all(in.get(), out.get(), 1, ncclInt64, rank.comm, rank.stream()), ncclSuccess);
    rank.device.synchronize();
    EXPECT_THAT(out.read<std::int64_t>(), ::testing::ElementsAre(rank.rank, 10 + rank.rank, 20 + rank.rank));
  });
}

/// What was captured runs at each launch of the graph, with what the buffers hold then.
TEST_F(FakeNcclTest, CapturedCollectivesRunAtEachLaunch) {
  with_ranks(2, Mode::blocking, [](Rank& rank) {
    const Buffer data(std::vector<float>(3, 1));
    CUgraph graph = nullptr;
    CUgraphExec executable = nullptr;
    ASSERT_EQ(cuStreamBeginCapture(rank.stream(), CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
    EXPECT_EQ(fake()->all_reduce(data.get(), data.get(), 3, ncclFloat32, ncclSum, rank.comm, rank.stream()),
              ncclSuccess);
    ASSERT_EQ(cuStreamEndCapture(rank.stream(), &graph), CUDA_SUCCESS);
    EXPECT_EQ(fake()->all_reduce(data.get(), data.get(), 3, ncclFloat32, ncclSum, rank.comm, rank.stream()),
              ncclSuccess);
    rank.device.synchronize();
    EXPECT_EQ(data.read<float>()[2], 2);
    ASSERT_EQ(cuGraphInstantiateWithFlags(&executable, graph, 0), CUDA_SUCCESS);
    for (int i = 0; i < 3; ++i) EXPECT_EQ(cuGraphLaunch(executable, rank.stream()), CUDA_SUCCESS);
    rank.device.synchronize();
    EXPECT_EQ(data.read<float>()[2], 16);
    EXPECT_EQ(cuGraphExecDestroy(executable), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
  });
}

TEST_F(FakeNcclTest, ArgumentsAreChecked) {
  with_ranks(2, Mode::blocking, [](Rank& rank) {
    const Buffer data(std::vector<float>(4, 1));
    const NcclFunctions& nccl = fake().functions();
    void* p = data.get();
    const auto wrong_type = static_cast<ncclDataType_t>(12);
    EXPECT_EQ(nccl.all_reduce(p, p, 4, wrong_type, ncclSum, rank.comm, rank.stream()), ncclInvalidArgument);
    EXPECT_EQ(nccl.broadcast(p, p, 4, ncclFloat32, 2, rank.comm, rank.stream()), ncclInvalidArgument);
    EXPECT_EQ(nccl.all_reduce(p, p, 0, ncclFloat32, ncclSum, rank.comm, rank.stream()), ncclSuccess);  // is nothing
    EXPECT_EQ(nccl.send(p, 1, ncclFloat32, rank.rank, rank.comm, rank.stream()), ncclInvalidUsage);    // to itself
    int number = -1;
    EXPECT_EQ(nccl.comm_count(rank.comm, &number), ncclSuccess);
    EXPECT_EQ(number, 2);
    EXPECT_EQ(nccl.comm_user_rank(rank.comm, &number), ncclSuccess);
    EXPECT_EQ(number, rank.rank);
    EXPECT_EQ(nccl.comm_cu_device(rank.comm, &number), ncclSuccess);
    EXPECT_EQ(number, rank.rank);
    EXPECT_EQ(nccl.comm_count(nullptr, &number), ncclInvalidArgument);
  });
}

// ncclGetLastError speaks of the process: with several ranks in it, the text may be another's.
TEST_F(FakeNcclTest, TheLastErrorSaysWhatIsWrong) {
  with_ranks(1, Mode::blocking, [](Rank& rank) {
    const Buffer data(std::vector<float>(4, 1));
    EXPECT_EQ(fake().functions().broadcast(data.get(), data.get(), 4, ncclFloat32, 1, rank.comm, rank.stream()),
              ncclInvalidArgument);
    EXPECT_THAT(fake().last_error(rank.comm), ::testing::HasSubstr("invalid root"));
  });
}

TEST_F(FakeNcclTest, MemoryAndRegistration) {
  with_ranks(2, Mode::blocking, [](Rank& rank) {
    const NcclFunctions& nccl = fake().functions();
    void* memory = nullptr;
    void* handle = nullptr;
    ncclWindow_t window = nullptr;
    ASSERT_EQ(nccl.mem_alloc(&memory, 4096), ncclSuccess);
    EXPECT_EQ(nccl.comm_register(rank.comm, memory, 4096, &handle), ncclSuccess);
    EXPECT_EQ(nccl.comm_deregister(rank.comm, handle), ncclSuccess);
    EXPECT_EQ(nccl.comm_deregister(rank.comm, handle), ncclInvalidUsage);
    EXPECT_EQ(nccl.comm_window_register(rank.comm, memory, 4096, &window, kWindowSymmetric), ncclSuccess);
    EXPECT_NE(window, nullptr);
    EXPECT_EQ(nccl.comm_window_deregister(rank.comm, window), ncclSuccess);
    EXPECT_EQ(nccl.mem_free(memory), ncclSuccess);
  });
}

}  // namespace
}  // namespace ddp::collectives::nccl
