// Stacks of processes that stand at the same place read the same, whichever tool read them.
#include "diagnostics/stacks/proc_stack.hpp"

namespace ddp::diagnostics {
namespace {

// Of gdb 13 on two processes of one program, with its noise.
std::string gdb_output(const std::string& pid, const std::string& address) {
  return "[New LWP " + pid + "1]\n[Thread debugging using libthread_db enabled]\n" + "0x00007f" + address +
         " in poll () from /lib/libc.so.6\n\nThread 1 (Thread 0x7f" + address + " (LWP " + pid +
         ") \"train\"):\n#0  0x00007f" + address +
         " in poll () from /lib/libc.so.6\n#1  wait_for_others (...) at train.cpp:7\n" + "\nThread 2 (Thread 0x7e" +
         address + " (LWP " + pid + "1) \"pool-0\"):\n#0  futex_wait () at futex.h:1\n" + "\nThread 3 (Thread 0x7d" +
         address + " (LWP " + pid + "2) \"pool-1\"):\n#0  futex_wait () at futex.h:1\n" + "[Inferior 1 (process " +
         pid + ") detached]\n";
}

TEST(StackText, GdbsStacksOfEqualProcessesAreEqual) {
  const std::string text = stack_of_gdb(gdb_output("100", "aa"));
  EXPECT_EQ(text, stack_of_gdb(gdb_output("2345", "bbcc")));
  EXPECT_EQ(text,
            "thread \"train\"\n  #0  poll () from /lib/libc.so.6\n  #1  wait_for_others (...) at train.cpp:7\n"
            "2 threads \"pool-0\", ...\n  #0  futex_wait () at futex.h:1");
}

TEST(StackText, TheMainThreadsInnermostFramesAreOneLine) {
  const std::string stack = stack_of_py_spy(
      "Process 7: python3 train.py\nPython v3.11.2 (/usr/bin/python3.11)\n\nThread 8 (idle): \"loader\"\n"
      "    wait (threading.py:320)\nThread 7 (idle): \"MainThread\"\n    load (train.py:7)\n    epoch (train.py:9)\n"
      "    main (train.py:20)\n    <module> (train.py:30)\nThread 9 (idle): \"writer\"\n    write (log.py:1)\n");
  EXPECT_EQ(main_frames(stack), "load (train.py:7), called by epoch (train.py:9), called by main (train.py:20)");
  EXPECT_EQ(main_frames("thread \"MainThread\"\n  <module> (a.py:1)"), "<module> (a.py:1)");
  EXPECT_EQ(main_frames("thread \"loader\"\n  wait (threading.py:320)"), "");
  EXPECT_EQ(main_frames(""), "");
}

// gdb takes 7 s for it at libtorch, so it is told not to.
TEST(StackText, NamesAreDemangled) {
  EXPECT_EQ(
      stack_of_gdb("Thread 1 (LWP 7 \"python\"):\n"
                   "#0  0x00007f in _ZN4c10d8TCPStore6doWaitENSt6chrono8durationIlSt5ratioILl1ELl1000EEEE () from "
                   "libtorch_cpu.so\n"
                   "#1  0x00007f in _ZN1a1bEv () from a.so\n#2  main_Zone () at a_Z.c:1\n"),
      "thread \"python\"\n"
      "  #0  c10d::TCPStore::doWait(std::chrono::duration<long, std::ratio<1l, 1000l> >) () from libtorch_cpu.so\n"
      "  #1  a::b() () from a.so\n  #2  main_Zone () at a_Z.c:1");
  EXPECT_EQ(stack_of_gdb("Thread 1 (LWP 7):\n#0  _Znonsense () from a.so\n"), "thread\n  #0  _Znonsense () from a.so");
}

TEST(StackText, PySpysStacksOfEqualProcessesAreEqual) {
  const auto output = [](const std::string& pid) {
    return "Process " + pid + ": python3 train.py --rank " + pid + "\nPython v3.11.7 (/usr/bin/python3.11)\n\nThread " +
           pid + " (idle): \"MainThread\"\n" +
           "    wait_for_others (train.py:12)\n    <module> (train.py:30)\nThread 0x7F" + pid +
           " (idle): \"loader\"\n    run (loader.py:3)\n";
  };
  EXPECT_EQ(stack_of_py_spy(output("10")),
            "thread \"MainThread\"\n  wait_for_others (train.py:12)\n  <module> (train.py:30)\n"
            "thread \"loader\"\n  run (loader.py:3)");
  EXPECT_EQ(stack_of_py_spy(output("10")), stack_of_py_spy(output("99")));
}

TEST(StackText, WhatHasNoStackIsEmpty) {
  for (const char* output : {"", "ptrace: Operation not permitted.\n", "Thread 1 (LWP 7):\n", "#0 main ()\n", "\n\n"}) {
    EXPECT_THAT(stack_of_gdb(output), IsEmpty()) << output;
    EXPECT_THAT(stack_of_py_spy(output), IsEmpty()) << output;
  }
}

TEST(StackText, ATextIsBounded) {
  std::vector<ThreadStack> threads;
  for (int i = 0; i < 1000; ++i)
    threads.push_back({.name = "t", .frames = {std::to_string(i), std::string(1000, 'x')}});
  const std::string text = format_threads(threads);
  EXPECT_LE(text.size(), kMaxStackBytes + 32);
  EXPECT_THAT(text, HasSubstr("too long"));
}

TEST(StackText, TheReasonIsOneLine) {
  EXPECT_EQ(reason_of("warning: x\nptrace: Operation not permitted.\n/tmp/7: No such file.\n"),
            "ptrace: Operation not permitted.");
  EXPECT_EQ(reason_of("Error: Permission Denied: Try again\n\nReason: \x1b[1m"), "Error: Permission Denied: Try again");
  EXPECT_EQ(reason_of("first\nlast \x07\n\n"), "last ?");
  EXPECT_EQ(reason_of(""), "");
  EXPECT_LE(reason_of(std::string(10'000, 'x')).size(), 200U);
}

}  // namespace

}  // namespace ddp::diagnostics
