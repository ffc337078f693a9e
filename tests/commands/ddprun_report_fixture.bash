# For bats files that look into the report of --report-json.

load ../support/ddprun_jobs

# report EXPRESSION...: each must be true of report.json, which is `r`.
report() {
  python3 -c 'import json, sys
r = json.load(open("report.json"))
for expression in sys.argv[1:]:
    if not eval(expression): sys.exit(f"not so: {expression}\n" + json.dumps(r, indent=1))' "$@"
}
