// Does nothing: shows whether a sanitizer can be linked and runs here.
int main() { return 0; }
