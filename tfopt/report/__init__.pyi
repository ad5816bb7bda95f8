from .schema import Report as Report
