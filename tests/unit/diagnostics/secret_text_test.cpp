// Of fifty variables with a secret in them none shows it, and ordinary ones stay as they are.
#include "diagnostics/environment/redaction.hpp"

#include "diagnostics/environment/variable_table.hpp"

namespace ddp::diagnostics {
namespace {

struct Case {
  const char* name;
  std::string value;
};

TEST(SecretText, NoFormOfASecretIsShown) {
  const std::string run = "hunter2Hunter2Hunter2Hunter2Hunter2Hunter2";
  for (const Case& each : {
           // names
           Case{"SSHPASS", "hunter2"},
           Case{"DBPASS", "hunter2"},
           Case{"DB_PW", "hunter2"},
           Case{"LDAP_BINDPW", "hunter2"},
           Case{"SNOWFLAKE_PASSCODE", "hunter2"},
           Case{"CREDS", "hunter2"},
           Case{"BEARER", "hunter2"},
           Case{"AUTHORIZATION", "hunter2"},
           Case{"SESSIONID", "hunter2"},
           Case{"MINIO_ACCESSKEY", "hunter2"},
           Case{"PRIVATEKEY", "hunter2"},
           Case{"GPG_PASSPHRASE", "hunter2"},
           Case{"rsync_passwd", "hunter2"},
           Case{"MYSQL_PWD", "hunter2"},
           Case{"WANDB_API_KEY", "hunter2"},
           Case{"HFTOKEN", "hunter2"},
           Case{"DDPRUN_AGENT", "10.0.0.1 hunter2"},
           Case{"SLURM_DDP_STEP", "hunter2"},
           Case{"DDP_RDZV_SECRET", "hunter2"},
           Case{"PMIX_NAMESPACE", "ddp.hunter2"},
           Case{"PMIX_ID", "ddp.hunter2.0"},
           Case{"PMIX_SERVER_URI41", "ddp.hunter2.0;tcp4://127.0.0.1:4321"},
           // headers, options, parameters
           Case{"OTEL_EXPORTER_OTLP_HEADERS", "x=1,api-key=hunter2"},
           Case{"H", "Authorization=Bearer hunter2"},
           Case{"H", "Authorization: Bearer hunter2"},
           Case{"H", "curl -H 'X-Api-Key: hunter2' http://h"},
           Case{"H", "foo Bearer hunter2 bar"},
           Case{"ARGS", "--hf-token hunter2 --epochs 3"},
           Case{"ARGS", "--hf-token=hunter2"},
           Case{"ARGS", "--password 'a hunter2' --x"},
           Case{"CONN", "host=a password=\"a hunter2\" user=b"},
           Case{"CONN", "host=a;password=hunter2;user=b"},
           Case{"CONN", "password = hunter2"},
           Case{"YAML", "user: a\npassword: hunter2\n"},
           Case{"KV", "token:hunter2"},
           Case{"JSON", R"({"user": "a", "password": "hunter2", "n": 1})"},
           Case{"JSON", R"({"secret":"a\"hunter2"})"},
           Case{"SAS", "https://x/a?sv=1&sig=hunter2&se=3"},
           // keys
           Case{"PEM", "-----BEGIN RSA PRIVATE KEY-----\nhunter2\n-----END RSA PRIVATE KEY-----\n"},
           Case{"PEM", "a\n-----BEGIN OPENSSH PRIVATE KEY-----\nhunter2"},
           // URLs
           Case{"HOOK", "https://hooks.slack.com/services/T0/B0/hunter2"},
           Case{"HOOK", "https://discord.com/api/webhooks/12/hunter2"},
           Case{"http_proxy", "user:hunter2@proxy:3128"},
           Case{"DB", "postgres://u:a/hunter2@h/db"},
           Case{"DB", "postgres://u:a#hunter2@h/db"},
           Case{"DB", "postgres://u:a?hunter2@h/db"},
           Case{"DB", "redis://:hunter2@h:6379/0"},
           Case{"PIP_INDEX_URL", "https://hunter2@h/simple"},
           // tokens
           Case{"X", "hf_" + run},
           Case{"X", "it is ghp_" + run},
           Case{"X", "github_pat_" + run},
           Case{"X", "sk-" + run},
           Case{"X", "sk-proj-" + run},
           Case{"X", "eyJ" + run + "." + run + "." + run},
           Case{"X", "xoxb-1-" + run},
           Case{"X", "glpat-" + run},
           Case{"X", "npm_" + run},
           Case{"X", "AIza" + run},
           Case{"X", "a,nvapi-" + run},
       }) {
    EXPECT_THAT(shown_value(each.name, each.value), Not(HasSubstr("hunter2"))) << each.name << '=' << each.value;
    EXPECT_THAT(shown_value(each.name, each.value), HasSubstr("(hidden)"));
  }
  EXPECT_EQ(shown_value("X", "AKIAIOSFODNN7EXAMPLE"), "(hidden)");
}

TEST(SecretText, WhatStandsAroundIsShown) {
  EXPECT_EQ(without_secrets("--hf-token a --epochs 3"), "--hf-token (hidden) --epochs 3");
  EXPECT_EQ(without_secrets("x=1,api-key=b,y=2"), "x=1,api-key=(hidden),y=2");
  EXPECT_EQ(without_secrets(R"({"password": "a", "n": 1})"), R"x({"password": "(hidden)", "n": 1})x");
  EXPECT_EQ(without_secrets("curl -H 'Authorization: Bearer a' h"), "curl -H 'Authorization: (hidden)' h");
  EXPECT_EQ(without_secrets("user:pw@proxy:3128"), "user:(hidden)@proxy:3128");
  EXPECT_EQ(without_secrets("https://hooks.slack.com/services/a b"), "https://hooks.slack.com/(hidden) b");
  EXPECT_EQ(without_secrets("-----BEGIN X KEY-----\na\n-----END X KEY-----\nb"), "(hidden)\nb");
  EXPECT_EQ(shown_value("PMIX_SERVER_URI41", "a.0;tcp4://127.0.0.1:4321"), "(hidden);tcp4://127.0.0.1:4321");
}

TEST(SecretText, OrdinaryVariablesAreShown) {
  for (const Case& each : {
           Case{"PWD", "/home/a"},
           Case{"OLDPWD", "/home/a"},
           Case{"KEYBOARD", "us"},
           Case{"KEYCHAIN", "/x"},
           Case{"NCCL_IB_PKEY", "3"},
           Case{"NCCL_SOCKET_IFNAME", "=eth0,eth1"},
           Case{"NCCL_IB_HCA", "mlx5_0:1,mlx5_1:1"},
           Case{"NCCL_DEBUG_FILE", "/tmp/nccl.%h.%p"},
           Case{"NCCL_TUNER_PLUGIN", "libnccl-tuner.so"},
           Case{"UCX_NET_DEVICES", "mlx5_0:1"},
           Case{"LUSTRE", "10.0.0.1@o2ib:10.0.0.2@o2ib:/scratch"},
           Case{"SCP", "user@host:/path"},
           Case{"IMAGE", "ubuntu:22.04@sha256:abcdef"},
           Case{"PS1", "\\u@\\h:\\w$"},
           Case{"PATH", "/usr/bin:/home/a/sk-learn-env-python3.11/bin:/opt/hf_models/bin"},
           Case{"LD_PRELOAD", "libpass:libfoo.so"},
           Case{"GIT_ASKPASS", "/usr/bin/askpass"},
           Case{"LOADEDMODULES", "cuda/12.2:openmpi/4.1"},
           Case{"LS_COLORS", "rs=0:di=01;34:*.key=01;35:*.tar=01;31"},
           Case{"XDG_SESSION_ID", "3"},
           Case{"CUDA_VISIBLE_DEVICES", "GPU-0123456789abcdef,1"},
           Case{"SLURM_JOB_NODELIST", "n[1-4]"},
           Case{"URL", "ftp://x:1/y@z https://h:8080/a@b http://[::1]:80/x@y"},
           Case{"CMD", "train.py --tokenizer gpt2 --key-dim 64 --keyword x --max-tokens 512"},
           Case{"DBUS_SESSION_BUS_ADDRESS", "unix:path=/run/user/1000/bus"},
           Case{"KUBERNETES_PORT", "tcp://10.0.0.1:443"},
           Case{"TEXT", "Basic training, bearer of bad news"},
           Case{"QUERY", "a=b;monkeys=c?d=e&f"},
           Case{"KW", "key= other"},
           Case{"P", "/opt/keys/token:/usr"},
           Case{"OMP_PLACES", "{0:4},{4:4}"},
           Case{"HF_HOME", "/data/hf_home_directory_v2"},
           Case{"JSON", R"({"num_key_value_heads": 8, "max_tokens": 4096})"},
           Case{"PMIX_NAMESPACE", "slurm.pmix.17.0"},
           Case{"TERMCAP", "SC|screen:do=^J:le=^H"},
           Case{"UCX_BYPASS", "y"},
           Case{"TOKENIZERS_PARALLELISM", "false"},
           Case{"CERT", "-----BEGIN CERTIFICATE----- a -----END CERTIFICATE-----"},
           Case{"EMPTY", ""},
       }) {
    EXPECT_EQ(shown_value(each.name, each.value), each.value) << each.name;
  }
}

TEST(SecretText, OfTheKnownVariablesOnlySecretsAreHidden) {
  std::string hidden;
  for (const Variable& each : variable_table()) {
    if (is_secret(each.name)) hidden += std::string(each.name) + ' ';
  }
  EXPECT_EQ(hidden, "NCCL_PSK ");
}

}  // namespace
}  // namespace ddp::diagnostics
