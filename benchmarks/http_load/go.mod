module penstock/benchmarks/http_load

go 1.19
