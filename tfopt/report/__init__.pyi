from .bench.bench_report import BenchReport as BenchReport
