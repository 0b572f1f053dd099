"""A report as one HTML file that needs no server and no network.

Place: behind ``Report.to_html``. ``data`` makes plain data of a report, ``hints`` says what is odd about it, ``inline``
puts both, the scripts of this folder and the libraries they draw with into one file.
"""

from mixbackend.reporting.page.data import Told, page_data
from mixbackend.reporting.page.inline import page

__all__ = ["Told", "page", "page_data"]
