from .bench_report import BenchReport as BenchReport
from .documents import Report as Report
