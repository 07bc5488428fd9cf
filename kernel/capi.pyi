from typing import Final

table: Final[object]
